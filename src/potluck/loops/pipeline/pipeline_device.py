"""A device's side of the pipeline loop: one mailbox, whose messages start, feed and end the stage it runs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from potluck.journal import Span
from potluck.loops.frozen_exchange import FrozenFetcher
from potluck.loops.messages import FrozenSegment, Stop
from potluck.loops.node import COORDINATOR, IDLE_CHECK_S, Envelope, Step, Work
from potluck.loops.pipeline.compute_estimates import MeasuredLayers
from potluck.loops.pipeline.layer_assembly import LayerAssembly
from potluck.loops.pipeline.layer_measurement import measure_layers
from potluck.loops.pipeline.message_checks import join_copy, layers_refusal, replica_refusal
from potluck.loops.pipeline.messages import (
    Activation,
    Assign,
    Begin,
    Close,
    Closed,
    Doing,
    Exam,
    Examine,
    ExamLabels,
    Fetch,
    Finish,
    Gradient,
    Halt,
    Inquire,
    Inventory,
    Kept,
    Labels,
    Measure,
    Measured,
    Missing,
    Piece,
    Ready,
    Refused,
    Replica,
    Resend,
    Secure,
)
from potluck.loops.pipeline.pipeline_stage import PipelineStage, StageContext
from potluck.loops.pipeline.stage_link import BackgroundTaskGroup
from potluck.loops.pipeline.term_state import TermHistory

__all__ = ["PipelineDevice"]

_ORDERS = (
    Stop,
    FrozenSegment,
    Halt,
    Measure,
    Assign,
    Begin,
    Close,
    Finish,
    Secure,
    Examine,
    Refused,
)  # only the coordinator may send them

_log = logging.getLogger("potluck")


class PipelineDevice:
    """One device in one incarnation."""

    def __init__(self, context: StageContext, frozen: FrozenFetcher | None = None) -> None:
        self._context = context
        self._frozen = frozen
        self._node = context.node
        self._version_store = context.version_store
        self._term = 0
        self._assembly: LayerAssembly | None = None
        self._stage: PipelineStage | None = None
        self._task_group = BackgroundTaskGroup(self._fail_device)
        self._layer_sends: dict[tuple[str, int, int], asyncio.Task[None]] = {}
        self._idle_check: asyncio.Task[None] | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._measured: MeasuredLayers | None = None
        self._error: BaseException | None = None
        self._main: asyncio.Task[Any] | None = None

    async def main(self) -> None:
        """Handle messages until the coordinator says stop."""
        self._main = asyncio.current_task()
        try:
            while True:
                envelope = await self._node.receive()
                assert envelope is not None
                if isinstance(envelope.message, _ORDERS) and envelope.sender != COORDINATOR:
                    continue
                if isinstance(envelope.message, Stop):
                    return
                self._handle_message(envelope)
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            raise
        finally:
            self._drop_term()
            for task in (self._idle_check, self._measuring):
                if task is not None:
                    task.cancel()
            if self._frozen is not None:
                self._frozen.cancel()

    def _handle_message(self, envelope: Envelope) -> None:
        message = envelope.message
        self._context.receptions.record_message(envelope.sender, envelope.transfer, self._node.now())
        if isinstance(message, Halt):
            self._begin_term(message)
        elif isinstance(message, FrozenSegment):
            if self._frozen is not None:
                self._frozen.receive_segment(message)
        elif getattr(message, "term", None) != self._term:
            return  # of another term, or a membership event
        elif isinstance(message, Measure):
            self._answer_measure()
        elif isinstance(message, Assign):
            self._accept_assignment(message)
        elif isinstance(message, Fetch):
            self._send_layers(envelope.sender, message)
        elif isinstance(message, Piece):
            if (
                self._assembly is not None
                and (reason := self._assembly.receive_layers(envelope.sender, message)) is not None
            ):
                self._report_refusal(envelope.sender, reason)
        elif isinstance(message, Replica):
            self._receive_copy(envelope.sender, message)
        elif isinstance(message, Refused):
            _log.info("%s was refused: %s", self._node.name, message.reason)
            self._drop_term()
        elif isinstance(message, Secure):
            self._version_store.retain_versions(lambda version, first, last: version >= message.version)
            if self._stage is not None:
                self._stage.versions.set_secure_version(message.version)
        elif self._stage is not None:
            self._dispatch_to_stage(self._stage, envelope)

    def _dispatch_to_stage(self, stage: PipelineStage, envelope: Envelope) -> None:
        """Hand a message to the running stage."""
        match envelope.message:
            case Begin() as begin:
                stage.begin_range(begin)
            case Close(end=end):
                closed = stage.close_range(end)
                if end is None and closed is not None:
                    self._node.send(COORDINATOR, Closed(self._term, closed))
            case Finish():
                stage.finish_in_flight()
            case Inquire():
                self._node.send(COORDINATOR, stage.current_activity())
            case Activation() | Labels() | Gradient() as message:
                stage.receive_micro_batch(envelope.sender, message)
            case Examine() as examine:
                stage.start_evaluation(examine)
            case Exam() | ExamLabels() as exam:
                stage.receive_evaluation(envelope.sender, exam)
            case Resend() as request:
                stage.exchange.resend_message(envelope.sender, request)
            case Kept() as kept:
                stage.handle_kept(envelope.sender, kept)

    # --- a new term ------------------------------------------------------------------------------------------------

    def _begin_term(self, halt: Halt) -> None:
        if halt.term < self._term:
            return
        if halt.term > self._term:
            self._drop_term()
            self._term = halt.term
            history = TermHistory(halt.terms)
            self._version_store.retain_terms(lambda version, made: history.term_that_made(version) == made)
        if not halt.idle:
            self._send_inventory()
        elif self._idle_check is None or self._idle_check.done():
            self._idle_check = asyncio.get_running_loop().create_task(self._answer_when_idle())

    async def _answer_when_idle(self) -> None:
        """Work that hangs holds the processor although its term is over."""
        await self._node.compute(Work([Step(IDLE_CHECK_S)]))
        self._send_inventory()

    def _send_inventory(self) -> None:
        self._node.send(COORDINATOR, Inventory(self._term, self._version_store.list_held()))

    def _answer_measure(self) -> None:
        """Measure the layers in this incarnation's first request; repeated requests get the same answer."""
        if self._measured is not None:
            self._node.send(COORDINATOR, Measured(self._term, *map(tuple, self._measured)))
        elif self._measuring is None:
            self._measuring = asyncio.get_running_loop().create_task(self._measure_layers())
        else:
            self._node.send(COORDINATOR, Doing(self._term))

    async def _measure_layers(self) -> None:
        node, began, samples = self._node, self._node.now(), self._context.sizes.size
        _, _, backend, costs, flops, *_ = self._context
        self._measured = await measure_layers(node, backend, costs, flops, samples)
        node.record(Span(node.name, "measure", began, node.now(), {"term": self._term}))
        self._answer_measure()

    def _accept_assignment(self, assign: Assign) -> None:
        if self._stage is not None:
            self._node.send(COORDINATOR, Ready(self._term))
        elif self._assembly is None:
            self._assembly = LayerAssembly(self._context, assign)
            if self._assembly.load_local():
                self._task_group.start_task(self._assemble_layers(self._assembly, assign))
            else:
                self._node.send(COORDINATOR, Missing(self._term))
        else:
            self._node.send(COORDINATOR, Doing(self._term))

    async def _assemble_layers(self, assembly: LayerAssembly, assign: Assign) -> None:
        """Fetch the layers that other devices hold, all at once, then start the stage."""
        fetches = [self._task_group.start_task(assembly.fetch_layers(origin)) for origin in assembly.remote_sources]
        for fetch in fetches:
            await fetch
        if self._frozen is not None and not self._frozen.is_complete:
            await self._frozen.fetch_layers(*assembly.layer_range)
        replicated = assign.stride or self._context.settings.replication.central_stride()
        oldest = 0 if replicated else assign.version
        self._version_store.retain_versions(lambda version, first, last: oldest <= version <= assign.version)
        self._stage = PipelineStage(self._context, assign, assembly.assembled_weights(), self._fail_device)
        self._assembly = None
        self._node.send(COORDINATOR, Ready(self._term))

    def _drop_term(self) -> None:
        self._task_group.cancel_all()
        if self._stage is not None:
            self._stage.cancel_tasks()
        self._stage = self._assembly = None
        self._layer_sends.clear()
        self._version_store.drop_incoming()

    # --- copies ----------------------------------------------------------------------------------------------------

    def _send_layers(self, receiver: str, fetch: Fetch) -> None:
        """Send the requested layers, unless they are already in flight."""
        if (reason := layers_refusal(fetch.first, fetch.last, self._context.costs.layer_count)) is not None:
            self._report_refusal(receiver, reason)
            return
        key = (receiver, fetch.first, fetch.version)
        sending = self._layer_sends.get(key)
        if sending is not None and not sending.done():
            self._node.send(COORDINATOR, Doing(self._term))
            return
        weights = self._version_store.find_covering(fetch.version, fetch.first, fetch.last)
        if weights is None:
            self._node.send(COORDINATOR, Missing(self._term))
            return
        payload = self._context.backend.pack_layers(weights, fetch.first, fetch.last, fetch.moments)
        piece = Piece(payload, term=self._term, first=fetch.first, last=fetch.last, version=fetch.version)
        self._layer_sends[key] = self._task_group.start_task(self._send_piece(receiver, piece))

    async def _send_piece(self, receiver: str, piece: Piece) -> None:
        await self._node.send(receiver, piece)

    def _receive_copy(self, sender: str, replica: Replica) -> None:
        """Store a chunk of a copy; once complete, confirm the copy to its sender and to the coordinator."""
        if (reason := replica_refusal(replica, self._context.costs.layer_count)) is not None:
            self._report_refusal(sender, reason)
            return
        kept = Kept(self._term, replica.first, replica.last, replica.version)
        if not self._version_store.has_version(replica.version, replica.made, replica.first, replica.last):
            chunks = self._version_store.receive_chunk(sender, replica)
            if chunks is None:
                return
            payload = join_copy(self._context.backend, replica, chunks)
            if isinstance(payload, str):
                self._report_refusal(sender, payload)
                return
            weights = self._apply_copied_step(replica, payload) if replica.step else self._join_copy(replica, payload)
            if weights is None:
                self._node.send(sender, Kept(self._term, replica.first, replica.last, replica.version, whole=False))
                return
            self._version_store.add_version(replica.version, replica.made, replica.first, replica.last, weights)
        self._node.send(sender, kept)
        self._node.send(COORDINATOR, kept)

    def _join_copy(self, replica: Replica, payload: Any) -> Any:
        return self._context.backend.join_layers(replica.first, replica.last, [(replica.first, replica.last, payload)])

    def _apply_copied_step(self, replica: Replica, payload: Any) -> Any | None:
        before = self._version_store.find_exact(replica.version - 1, replica.first, replica.last)
        if before is None:
            return None
        lr = self._context.settings.lr_schedule.lr_factor(replica.version - 1, replica.drops)
        return self._context.backend.apply_step(before, payload, lr)

    def _report_refusal(self, sender: str, reason: str) -> None:
        """Report that what a device sent cannot be used."""
        self._node.send(COORDINATOR, Refused(self._term, sender, reason))

    def _fail_device(self, error: BaseException) -> None:
        """End the device with the error of one of its tasks."""
        if self._error is None and self._main is not None:
            self._error = error
            self._main.cancel()

"""The live runtimes with a running loop behind them: mutated messages change the state that the next ones meet.

A coordinator has one honest device, played by the fuzzer, which keeps rounds or batches going, and three hostile ones.
A device has a hostile coordinator and a hostile peer. Whoever is expelled joins again as a new incarnation.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.faults.fuzz.fuzz_corpus import ATTACKER, PEER, control_samples, fuzz_job, record_corpus
from benchmarks.faults.fuzz.fuzz_findings import FuzzFindings
from benchmarks.faults.fuzz.honest_replies import honest_replies
from benchmarks.faults.fuzz.hostile_sender import HostileSender
from benchmarks.faults.fuzz.memory_transport import MemoryQuery, MemorySession
from potluck.journal import Instant, Journal, JournalRecord, JournalTotals, Scalar, Span
from potluck.loops.messages import Stop
from potluck.loops.node import COORDINATOR, Node
from potluck.run.device_state import DeviceStates, SavedDeviceStates
from potluck.run.prepared_job import prepare_job
from potluck.run.run_lock import RunLock
from potluck.run.run_store import RunStore
from potluck.worlds.live import control_messages as control
from potluck.worlds.live import key_expressions, wire_format
from potluck.worlds.live.compute_speed import MeasuredSpeed
from potluck.worlds.live.coordinator_runtime import AdmissionHooks, CoordinatedRun, _CoordinatorRuntime
from potluck.worlds.live.device_runtime import _DeviceRuntime
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRefused, JoinRequest, RunInfo, encode_handshake
from potluck.worlds.live.security.admission_policy import AdmissionPolicy
from potluck.worlds.live.wire_format import WireError
from potluck.worlds.live.zenoh_session import Endpoint

__all__ = ["CoordinatorTarget", "DeviceTarget", "RuntimeTarget", "all_runtime_targets"]

HONEST, HOSTILE = "d-0", (ATTACKER, PEER, "d-3")
_LEASE_S, _LIMIT_BYTES = 3600.0, 1 << 20
_YIELD_EVERY = 40  # inputs between two turns of the event loop
_TURNS = 4  # of the event loop
_MOST_REPLIES = 200
_decode_line = msgspec.json.Decoder(Span | Instant | Scalar).decode
_encode_line = msgspec.json.Encoder().encode


class RuntimeTarget:
    """A runtime that is started again whenever its run has ended."""

    def __init__(self, name: str, loop: str, findings: FuzzFindings, generator: random.Random) -> None:
        self.name = name
        self._loop_name = loop
        self._findings = findings
        self._random = generator
        self._main: asyncio.Task[Any] | None = None
        self.starts = 0

    async def feed(self, count: int) -> int:
        """Feed about that many inputs; returns how many were fed."""
        fed = 0
        while fed < count:
            if self._main is None or self._main.done():
                await self._end_run()
                self._start_run()
                self.starts += 1
                await asyncio.sleep(0)
            for _ in range(_YIELD_EVERY):
                fed += self._feed_one()
            for _ in range(_TURNS):
                await asyncio.sleep(0)
                self._answer_requests()
        return fed

    async def close(self) -> None:
        if self._main is not None:
            self._main.cancel()
        await self._end_run()

    def _start_run(self) -> None:
        raise NotImplementedError

    def _feed_one(self) -> int:
        raise NotImplementedError

    def _answer_requests(self) -> None:
        """Do what keeps the run going."""

    async def _end_run(self) -> None:
        """Count how the run's loop ended, if with an exception."""
        if self._main is None:
            return
        await asyncio.wait([self._main])
        error = None if self._main.cancelled() else self._main.exception()
        if error is not None:
            self._findings.add_error(error)
        self._main = None

    def _call(self, function: Callable[..., object], *arguments: object) -> int:
        """Call a handler as one of Zenoh's threads would."""
        try:
            function(*arguments)
        except Exception as error:
            self._findings.add_error(error, arguments)
        return 1


class _CheckedJournal(Journal):
    """Keeps nothing, but checks that every record could be read again and counted."""

    def __init__(self, findings: FuzzFindings) -> None:
        super().__init__(None, totals=JournalTotals())
        self._findings = findings

    def write_record(self, record: JournalRecord) -> None:
        super().write_record(record)
        try:
            _decode_line(_encode_line(record))
        except msgspec.DecodeError as error:
            self._findings.add_error(ValueError(f"unreadable record: {error}"), record)


class CoordinatorTarget(RuntimeTarget):
    """The coordinator of `rounds`, `duplex` rounds or a `pipeline`."""

    def __init__(self, loop: str, findings: FuzzFindings, generator: random.Random, folder: Path) -> None:
        super().__init__(f"coordinator of {loop}", loop, findings, generator)
        self._corpus = record_corpus(loop)
        messages = (*self._corpus.to_coordinator, *self._corpus.to_device)
        self._sender = HostileSender(generator, messages, control_samples(), _LIMIT_BYTES)
        (folder / loop).mkdir()
        self._policy = AdmissionPolicy.for_run(folder / loop, "fuzz", [HONEST, *HOSTILE], None)
        self._token = self._policy.issue_token(datetime.now(UTC) + timedelta(days=9))
        self._replies: deque[tuple[str, Any]] = deque(maxlen=_MOST_REPLIES)

    def _start_run(self) -> None:
        prepared = prepare_job(fuzz_job(self._loop_name), None, None)
        store = RunStore.create_run(prepared.job, RunLock(None), None, lambda: False)
        info = RunInfo(run="fuzz", job="", lease=_LEASE_S, limit_bytes=_LIMIT_BYTES)
        run = CoordinatedRun(info=info, seed=0, journal=_CheckedJournal(self._findings))
        hooks = AdmissionHooks(check=self._check_admission)
        runtime = self._runtime = _CoordinatorRuntime(MemorySession(), Endpoint(), run, hooks)  # type: ignore[arg-type]
        runtime._rules = msgspec.structs.replace(
            runtime._rules, first_quarantine_s=0.0, longest_quarantine_s=0.0, max_losses=10**9
        )
        runtime._admission_server.serve_requests(MemorySession())  # type: ignore[arg-type]
        runtime.node_runtime.transport.on_sent = self._note_sent  # type: ignore[attr-defined]
        runtime.start_run()
        self._replies.clear()

        def coordinate(node: Node) -> Coroutine[Any, Any, Any]:
            return prepared.build_coordinator(node, store, store.progress).main()

        self._main = asyncio.ensure_future(runtime.lead_run(coordinate))
        for name in (HONEST, *HOSTILE):
            self._join(name)

    def _check_admission(self, request: JoinRequest) -> str | JoinRefused:
        reason = self._policy.refusal_reason(request.name, request.token, datetime.now(UTC), request.body)
        return request.name if reason is None else JoinRefused(reason=reason)

    def _join(self, name: str) -> None:
        self._runtime._admit_device(name, "secret")
        incarnation = self._runtime._membership.incarnation_of(name)
        ready = wire_format.encode_frame(incarnation, 0, control.DeviceHeartbeat(True))
        self._runtime.node_runtime._on_control_frame(name, ready)

    def _note_sent(self, to: str, data: bytes, bulk: bool) -> None:
        """Learn the current turn or term, and queue what an honest device would answer."""
        try:
            frame = wire_format.decode_offer(data, 1 << 30) if bulk else wire_format.decode_frame(data)
        except WireError:
            return
        self._sender.note_message(to, frame.message)
        for reply in honest_replies(frame, self._corpus.to_coordinator):
            self._replies.append((to, reply))

    def _feed_one(self) -> int:
        runtime, draw = self._runtime, self._random
        if draw.getrandbits(5) == 0:
            return self._ask_to_join()
        name = HOSTILE[draw.randrange(len(HOSTILE))]
        incarnation = runtime._membership.incarnation_of(name)
        if not incarnation:
            self._join(name)
            return 0
        return sum(self._deliver(name, *each) for each in self._sender.next_inputs(name, incarnation))

    def _answer_requests(self) -> None:
        """The honest device answers everything, a hostile one half of it."""
        self._runtime._code_errors.clear()  # most devices are hostile here, and would end the run by saying it failed
        while self._replies:
            name, reply = self._replies.popleft()
            incarnation = self._runtime._membership.incarnation_of(name)
            if incarnation and (name == HONEST or self._random.getrandbits(1)):
                for each in self._sender.valid_inputs(incarnation, reply):
                    self._deliver(name, *each)

    def _deliver(self, sender: str, data: bytes, header: bytes | None, bulk: bool) -> int:
        runtime = self._runtime.node_runtime
        if bulk:
            return self._call(runtime.mailbox.handle_bulk, sender, data, header)
        return self._call(runtime._on_control_frame, sender, data)

    def _ask_to_join(self) -> int:
        name = HOSTILE[self._random.randrange(len(HOSTILE))]
        request = encode_handshake(JoinRequest(name=name, token=self._token, body="secret"))
        query = MemoryQuery(key_expressions.admission_key(name), self._sender.mutated(request))
        return self._call(self._runtime._admission_server._on_query, query)


class DeviceTarget(RuntimeTarget):
    """A device of `rounds` or of a `pipeline`, whose coordinator and peers are hostile."""

    def __init__(self, loop: str, findings: FuzzFindings, generator: random.Random) -> None:
        super().__init__(f"device of {loop}", loop, findings, generator)
        corpus = record_corpus(loop)
        endings = (control.RunEnded, control.ExpelNotice, Stop)  # which any coordinator may send
        messages = [
            message for message in (*corpus.to_device, *corpus.to_coordinator) if not isinstance(message, endings)
        ]
        controls = [message for message in control_samples() if not isinstance(message, endings)]
        self._sender = HostileSender(generator, messages, controls, _LIMIT_BYTES)
        self._prepared = prepare_job(fuzz_job(loop), None, None)

    def _start_run(self) -> None:
        accepted = JoinAccepted(
            run="fuzz", era="e", name=HONEST, incarnation=1, job="", digest="", model="", seed=0, lease=_LEASE_S,
            limit_bytes=_LIMIT_BYTES, zero=time.monotonic(),
        )  # fmt: skip
        runtime = self._runtime = _DeviceRuntime(MemorySession(), accepted, 0.0, MeasuredSpeed(), None)  # type: ignore[arg-type]
        runtime._roster = control.Roster(1, {ATTACKER: 1, PEER: 1})

        async def main(node: Node, accepted: JoinAccepted) -> None:
            await self._prepared.build_device_loop(node, DeviceStates(SavedDeviceStates(), {})).main()

        self._main = asyncio.ensure_future(runtime.run_until_end(main))

    def _feed_one(self) -> int:
        sender, incarnation = (COORDINATOR, 0) if self._random.getrandbits(2) else (ATTACKER, 1)
        runtime = self._runtime.node_runtime
        fed = 0
        for data, header, bulk in self._sender.next_inputs(HONEST, incarnation):
            if bulk:
                fed += self._call(runtime.mailbox.handle_bulk, sender, data, header)
            else:
                fed += self._call(runtime._on_control_frame, sender, data)
        return fed


def all_runtime_targets(findings: FuzzFindings, generator: random.Random, folder: Path) -> Sequence[RuntimeTarget]:
    """One of each."""
    coordinators = [CoordinatorTarget(loop, findings, generator, folder) for loop in ("rounds", "duplex", "pipeline")]
    devices = [DeviceTarget(loop, findings, generator) for loop in ("rounds", "pipeline")]
    return [*coordinators, *devices]

"""Evaluates the model stage by stage: held-out batches flow forward, and the last stage sums up the score.

Examine ──▶ every stage           first ──Exam──▶ … ──Exam──▶ last ──Scored──▶ coordinator
                                    └────ExamLabels────────────┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from potluck.journal import Span
from potluck.loops.messages import Bulky
from potluck.loops.node import COORDINATOR, Step, Work
from potluck.loops.pipeline.messages import Exam, Examine, ExamLabels, Scored
from potluck.loops.pipeline.stage_link import WakeSignal

if TYPE_CHECKING:
    from potluck.loops.pipeline.pipeline_stage import PipelineStage

__all__ = ["StageEvaluator"]


class StageEvaluator:
    """One stage's side of one attempt; a new attempt starts over with a new evaluator."""

    def __init__(self, stage: PipelineStage, attempt: int) -> None:
        self._stage = stage
        self.attempt = attempt
        self.has_started = False
        self._inbox: dict[tuple[str, int], Bulky] = {}
        self._wake = WakeSignal()

    def receive_batch(self, message: Exam | ExamLabels) -> None:
        self._inbox[type(message).__name__, message.number] = message
        self._wake.notify()

    async def run(self, examine: Examine) -> None:
        stage, score = self._stage, self._stage.backend.start_score()
        for number in range(examine.batches):
            passed = await self._forward_batch(number)
            if not stage.is_last:
                stage.link.send(stage.exchange.next_device, Exam(passed, **self._message_fields(number)))
                continue
            labels = await self._wait_for_labels(number)
            score.add_batch(passed, labels)
        if stage.is_last:
            scored = Scored(stage.term, self.attempt, *score.sums, score.positions, score.values)
            stage.node.send(COORDINATOR, scored)

    async def _forward_batch(self, number: int) -> Any:
        """The outputs of this stage's layers."""
        stage, backend, versions = self._stage, self._stage.backend, self._stage.versions
        weights = versions.newest
        if stage.is_first and not stage.is_last:
            labels = ExamLabels(backend.evaluation_labels(number), **self._message_fields(number))
            stage.link.send(stage.exchange.last_device, labels)
        arrived = backend.evaluation_inputs(number) if stage.is_first else await self._wait_for_payload("Exam", number)
        seconds, began = stage.processor.forward_s(backend.evaluation_batch_size(number)), stage.node.now()
        work = Work([Step(seconds)], lambda pace: backend.evaluate_batch(weights, arrived), "examine")
        passed = await stage.processor.compute(work, number)
        fields = {"batch": number, "version": versions.applied, "stage": stage.index, "term": stage.term}
        stage.node.record(Span(stage.node.name, "examine", began, stage.node.now(), fields))
        return passed

    async def _wait_for_labels(self, number: int) -> Any:
        if self._stage.is_first:
            return self._stage.backend.evaluation_labels(number)
        return await self._wait_for_payload("ExamLabels", number)

    async def _wait_for_payload(self, name: str, number: int) -> Any:
        while (name, number) not in self._inbox:
            await self._wake.wait()
        return self._inbox.pop((name, number)).payload

    def _message_fields(self, number: int) -> dict[str, int]:
        return {"term": self._stage.term, "attempt": self.attempt, "number": number}

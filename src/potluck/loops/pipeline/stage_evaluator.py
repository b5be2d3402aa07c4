"""Measuring the model where it is: held-out batches go forward through the stages, and the last one adds up the score.

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
    """One stage's part in one attempt; what has arrived for another attempt is of no use."""

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
        stage, loss, right, count = self._stage, 0.0, 0, 0
        for number in range(examine.batches):
            passed = await self._forward_batch(number)
            if not stage.is_last:
                stage.link.send(stage.next_device, Exam(passed, **self._message_fields(number)))
                continue
            labels = await self._wait_for_labels(number)
            score = stage.backend.evaluation_score(passed, labels)
            loss, right, count = loss + score[0], right + score[1], count + score[2]
        if stage.is_last:
            stage.node.send(COORDINATOR, Scored(stage.term, self.attempt, loss, right, count))

    async def _forward_batch(self, number: int) -> Any:
        """Through this stage, in the stage's own time."""
        stage = self._stage
        mathematics, numbers = stage.backend, stage.versions[stage.applied]
        if stage.is_first and not stage.is_last:
            stage.link.send(
                stage.last_device, ExamLabels(mathematics.evaluation_labels(number), **self._message_fields(number))
            )
        arrived = (
            mathematics.evaluation_inputs(number) if stage.is_first else await self._wait_for_payload("Exam", number)
        )
        seconds, began = stage.forward_s(mathematics.evaluation_batch_size(number)), stage.node.now()
        passed = await stage.node.compute(
            Work([Step(seconds)], lambda pace: mathematics.evaluate_batch(numbers, arrived), "examine")
        )
        fields = {"batch": number, "version": stage.applied, "stage": stage.index, "term": stage.term}
        stage.node.record(Span(stage.node.name, "examine", began, stage.node.now(), fields))
        return passed

    async def _wait_for_labels(self, number: int) -> Any:
        if self._stage.is_first:
            return self._stage.backend.evaluation_labels(number)
        return await self._wait_for_payload("ExamLabels", number)

    async def _wait_for_payload(self, what: str, number: int) -> Any:
        while (what, number) not in self._inbox:
            await self._wake.wait()
        return self._inbox.pop((what, number)).payload

    def _message_fields(self, number: int) -> dict[str, int]:
        return {"term": self._stage.term, "attempt": self.attempt, "number": number}

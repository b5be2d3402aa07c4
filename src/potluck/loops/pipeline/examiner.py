"""Measuring the model where it is: held-out batches go forward through the stages, and the last one adds up the score.

Examine ──▶ every stage           first ──Exam──▶ … ──Exam──▶ last ──Scored──▶ coordinator
                                    └────ExamLabels────────────┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from potluck.journal import Span
from potluck.loops.messages import Bulky
from potluck.loops.node import COORDINATOR, Step, Work
from potluck.loops.pipeline.line import Bell
from potluck.loops.pipeline.messages import Exam, Examine, ExamLabels, Scored

if TYPE_CHECKING:
    from potluck.loops.pipeline.stage import Stage

__all__ = ["Examiner"]


class Examiner:
    """One stage's part in one attempt; what has arrived for another attempt is of no use."""

    def __init__(self, stage: Stage, attempt: int) -> None:
        self._stage = stage
        self.attempt = attempt
        self.begun = False
        self._inbox: dict[tuple[str, int], Bulky] = {}
        self._bell = Bell()

    def take(self, message: Exam | ExamLabels) -> None:
        self._inbox[type(message).__name__, message.number] = message
        self._bell.ring()

    async def run(self, examine: Examine) -> None:
        stage, loss, right, count = self._stage, 0.0, 0, 0
        for number in range(examine.batches):
            passed = await self._forward(number)
            if not stage.is_last:
                stage.line.send(stage.next_device, Exam(passed, **self._named(number)))
                continue
            labels = await self._labels(number)
            score = stage.mathematics.exam_score(passed, labels)
            loss, right, count = loss + score[0], right + score[1], count + score[2]
        if stage.is_last:
            stage.node.send(COORDINATOR, Scored(stage.term, self.attempt, loss, right, count))

    async def _forward(self, number: int) -> Any:
        """Through this stage, in the stage's own time."""
        stage = self._stage
        mathematics, numbers = stage.mathematics, stage.versions[stage.applied]
        if stage.is_first and not stage.is_last:
            stage.line.send(stage.last_device, ExamLabels(mathematics.exam_labels(number), **self._named(number)))
        arrived = mathematics.exam_inputs(number) if stage.is_first else await self._arrived("Exam", number)
        seconds, began = stage.forward_seconds(mathematics.exam_size(number)), stage.node.now()
        passed = await stage.node.compute(
            Work([Step(seconds)], lambda pace: mathematics.examine(numbers, arrived), "examine")
        )
        fields = {"batch": number, "version": stage.applied, "stage": stage.place, "term": stage.term}
        stage.node.record(Span(stage.node.name, "examine", began, stage.node.now(), fields))
        return passed

    async def _labels(self, number: int) -> Any:
        if self._stage.is_first:
            return self._stage.mathematics.exam_labels(number)
        return await self._arrived("ExamLabels", number)

    async def _arrived(self, what: str, number: int) -> Any:
        while (what, number) not in self._inbox:
            await self._bell.wait()
        return self._inbox.pop((what, number)).payload

    def _named(self, number: int) -> dict[str, int]:
        return {"term": self._stage.term, "attempt": self.attempt, "number": number}

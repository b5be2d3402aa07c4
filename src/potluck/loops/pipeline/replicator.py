"""Sends copies of a stage's versions to someone else, in pieces, while the line is idle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from potluck.journal import Span
from potluck.loops.node import Node
from potluck.loops.pipeline.line import Bell, Line
from potluck.loops.pipeline.mathematics import StageMathematics, split
from potluck.loops.pipeline.messages import Kept, Replica
from potluck.loops.pipeline.replication import pick

if TYPE_CHECKING:
    from potluck.loops.pipeline.stage import Stage

__all__ = ["Replicator"]


class Replicator:
    """One stage's copies for one keeper."""

    def __init__(self, stage: Stage, keeper: str, stride: int) -> None:
        self._stage = stage
        self._node: Node = stage.node
        self._mathematics: StageMathematics = stage.mathematics
        self._line: Line = stage.line
        self.keeper = keeper
        self._stride = stride
        self._sent = stage.start - 1  # the newest version that the keeper has, or that was overtaken
        self._has: int | None = None  # the version that the keeper has for sure
        self._answer: Kept | None = None
        self._bell = Bell()

    def stepped(self) -> None:
        """There is a new version."""
        self._bell.ring()

    def answered(self, kept: Kept) -> None:
        if (kept.first, kept.last) == (self._stage.first, self._stage.last):
            self._answer = kept
            self._bell.ring()

    async def run(self) -> None:
        while True:
            version = pick([held for held in self._stage.versions if held > self._sent], self._stride)
            if version is None:
                await self._bell.wait()
            else:
                await self._copy(version)
                self._sent = version

    async def _copy(self, version: int) -> None:
        """Send until it is kept, or is not needed any more: it is known to be safe, only nobody told us here."""
        began, pause, nbytes = self._node.now(), float(self._stage.settings.retry), 0
        while not (self._answer is not None and self._answer.version == version and self._answer.whole):
            self._answer = None
            if version not in self._stage.versions:
                return
            nbytes += await self._send(version)
            await self._await_answer(version, pause)
            pause = min(2 * pause, 4 * float(self._stage.settings.retry))
            if self._answer is None or not self._answer.whole:
                self._has = None
        self._has = version
        fields = {"to": self.keeper, "version": version, "bytes": nbytes}
        self._node.record(Span(self._node.name, "replicate", began, self._node.now(), fields))

    async def _await_answer(self, version: int, pause: float) -> None:
        until = self._node.now() + pause
        while (self._answer is None or self._answer.version != version) and self._node.now() < until:
            await self._bell.wait(until - self._node.now())

    async def _send(self, version: int) -> int:
        stage = self._stage
        step = stage.steps.get(version) if self._has == version - 1 and stage.settings.replication.by_steps else None
        payload = self._pack(stage.versions[version]) if step is None else self._mathematics.pack_step(*step)
        count = max(1, math.ceil(payload.nbytes / stage.settings.replication.chunk))
        for place, piece in enumerate(split(payload, count)):
            await self._line.idle(float(stage.settings.retry))
            await self._node.send(
                self.keeper,
                Replica(
                    piece, term=stage.term, first=stage.first, last=stage.last, version=version,
                    made=stage.made(version), place=place, count=count, step=step is not None,
                ),
            )  # fmt: skip
        self._line.count(payload.nbytes)
        return payload.nbytes

    def _pack(self, numbers: Any) -> Any:
        stage = self._stage
        return self._mathematics.pack(numbers, stage.first, stage.last, stage.settings.replication.optimizer_state)

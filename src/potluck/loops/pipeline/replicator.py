"""Sends copies of a stage's versions to someone else, in pieces, while the line is idle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from potluck.journal import Span
from potluck.loops.node import COORDINATOR, Node
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
        self._follows = False  # whether the keeper can go from the version sent last to the next by a step
        self._sent = stage.start - 1  # the newest version that was sent
        self._kept = stage.start - 1  # the newest version that is known to be kept
        self._open: dict[int, tuple[float, int]] = {}  # sent and not yet answered: since when, and bytes
        self._bell = Bell()

    def stepped(self) -> None:
        """There is a new version."""
        self._bell.ring()

    def answered(self, kept: Kept) -> None:
        if (kept.first, kept.last) != (self._stage.first, self._stage.last) or kept.version not in self._open:
            return
        began, nbytes = self._open.pop(kept.version)
        if kept.whole:
            self._kept = max(self._kept, kept.version)
            self._open = {version: sent for version, sent in self._open.items() if version > kept.version}
            fields = {"to": self.keeper, "version": kept.version, "bytes": nbytes}
            self._node.record(Span(self._node.name, "replicate", began, self._node.now(), fields))
        else:
            self._start_over()
        self._bell.ring()

    async def run(self) -> None:
        """Send what is new without waiting for answers; what stays unanswered for too long is sent anew."""
        pause = float(self._stage.settings.retry)
        while True:
            version = pick([held for held in self._stage.versions if held > self._sent], self._stride)
            if version is not None:
                await self._send(version)
            elif not await self._bell.wait(pause if self._open else None):
                self._start_over()

    def _start_over(self) -> None:
        """Something got lost on the way: go on from what is known to be kept, with a whole version."""
        self._sent = self._kept
        self._open.clear()
        self._follows = False

    async def _send(self, version: int) -> None:
        stage = self._stage
        step = stage.steps.get(version) if self._follows and self._sent == version - 1 else None
        payload = self._pack(stage.versions[version]) if step is None else self._mathematics.pack_step(*step)
        count = max(1, math.ceil(payload.nbytes / stage.settings.replication.chunk))
        self._sent, self._follows = version, stage.settings.replication.by_steps and self.keeper != COORDINATOR
        self._open[version] = (self._node.now(), payload.nbytes)
        self._line.count(payload.nbytes)
        for place, piece in enumerate(split(payload, count)):
            await self._line.idle(float(stage.settings.retry))
            await self._node.send(
                self.keeper,
                Replica(
                    piece, term=stage.term, first=stage.first, last=stage.last, version=version,
                    made=stage.made(version), place=place, count=count, step=step is not None,
                ),
            )  # fmt: skip

    def _pack(self, numbers: Any) -> Any:
        stage = self._stage
        return self._mathematics.pack(numbers, stage.first, stage.last, stage.settings.replication.optimizer_state)

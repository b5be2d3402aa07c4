"""How far each stage is, which batches are committed, and which versions are safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from potluck.loops.pipeline.messages import Kept, Report
from potluck.loops.pipeline.planner import Plan

__all__ = ["Ledger"]


class Ledger:
    """One term's progress. A batch is committed once every stage has applied its gradient."""

    def __init__(self, plan: Plan, version: int, secure: int) -> None:
        self.plan = plan
        self.start = version
        self.secure = secure  # the newest version of which every layer is held twice, or by the coordinator
        self._applied = dict.fromkeys(plan.order, version)
        self._copies: dict[tuple[int, int], set[int]] = {(layers[0], layers[-1]): set() for layers in plan.stages}
        self._losses: dict[int, float] = {}
        self._lost: set[str] = set()
        self._stuck: set[str] = set()

    @property
    def committed(self) -> int:
        return min(self._applied.values())

    @property
    def applied(self) -> Mapping[str, int]:
        return self._applied

    def report(self, stage: str, report: Report) -> bool:
        """Take in a report; whether it tells of a batch that was not known."""
        if report.loss is not None:
            self._losses[report.applied - 1] = report.loss
        is_new = report.applied > self._applied[stage]
        self._applied[stage] = max(self._applied[stage], report.applied)
        return is_new

    def loss(self, batch: int) -> float | None:
        return self._losses.pop(batch, None)

    def lose(self, device: str) -> None:
        self._lost.add(device)

    def stuck(self, device: str) -> None:
        """A stage waits for what does not come any more, if the next one is dead."""
        self._stuck.add(device)

    def unfinished(self) -> Sequence[str]:
        """Stages before a dead one that have not applied all that had passed it, as far as there are copies of it."""
        order = self.plan.order
        dead = [place for place, device in enumerate(order) if device in self._lost]
        before = order[: dead[0]] if dead else ()
        if not before:
            return ()
        version = min(self._copy(place) for place in dead)
        if before[-1] in self._stuck:
            version = min(version, self._applied[before[-1]])
        return [device for device in before if self._applied[device] < version]

    def _copy(self, place: int) -> int:
        """The newest version of a stage that someone else has."""
        layers = self.plan.stages[place]
        if self.plan.keepers and self.plan.keepers[place] in self._lost:
            return self.secure
        return max(self._copies[layers[0], layers[-1]], default=self.secure)

    def kept(self, kept: Kept) -> bool:
        """Take note of a copy; whether a newer version is safe with it."""
        copies = self._copies.get((kept.first, kept.last))
        if copies is None:
            return False
        copies.add(kept.version)
        whole = set.intersection(*self._copies.values())
        return self.secured(max(whole, default=self.secure))

    def secured(self, version: int) -> bool:
        if version <= self.secure:
            return False
        self.secure = version
        for copies in self._copies.values():
            copies -= {older for older in copies if older < version}
        return True

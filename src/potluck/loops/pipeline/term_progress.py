"""How far each stage is, which batches are committed, and which versions are safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from potluck.loops.pipeline.messages import Kept, Report
from potluck.loops.pipeline.pipeline_planner import PipelinePlan

__all__ = ["TermProgress"]


class TermProgress:
    """One term's progress. A batch is committed once every stage has applied its gradient."""

    def __init__(self, plan: PipelinePlan, version: int, secure: int) -> None:
        self.plan = plan
        self.start_version = version
        self.secure_version = secure  # the newest version of which every layer is held twice, or by the coordinator
        self._applied_versions = dict.fromkeys(plan.order, version)
        self._copies: dict[tuple[int, int], set[int]] = {(layers[0], layers[-1]): set() for layers in plan.stage_layers}
        self._losses: dict[int, float] = {}
        self._lost: set[str] = set()
        self._stuck: set[str] = set()

    @property
    def committed_version(self) -> int:
        return min(self._applied_versions.values())

    @property
    def applied_versions(self) -> Mapping[str, int]:
        return self._applied_versions

    def record_report(self, stage: str, report: Report) -> bool:
        """Take in a report; whether it tells of a batch that was not known."""
        if report.loss is not None:
            self._losses[report.applied - 1] = report.loss
        is_new = report.applied > self._applied_versions[stage]
        self._applied_versions[stage] = max(self._applied_versions[stage], report.applied)
        return is_new

    def pop_loss(self, batch: int) -> float | None:
        return self._losses.pop(batch, None)

    def mark_lost(self, device: str) -> None:
        self._lost.add(device)

    def mark_stuck(self, device: str) -> None:
        """A stage waits for what does not come any more, if the next one is dead."""
        self._stuck.add(device)

    def unfinished_stages(self) -> Sequence[str]:
        """Stages before a dead one that have not applied all that had passed it, as far as there are copies of it."""
        order = self.plan.order
        dead = [place for place, device in enumerate(order) if device in self._lost]
        before = order[: dead[0]] if dead else ()
        if not before:
            return ()
        version = min(self._newest_copy(place) for place in dead)
        if before[-1] in self._stuck:
            version = min(version, self._applied_versions[before[-1]])
        return [device for device in before if self._applied_versions[device] < version]

    def _newest_copy(self, place: int) -> int:
        """The newest version of a stage that someone else has."""
        layers = self.plan.stage_layers[place]
        if self.plan.keepers and self.plan.keepers[place] in self._lost:
            return self.secure_version
        return max(self._copies[layers[0], layers[-1]], default=self.secure_version)

    def record_copy(self, kept: Kept) -> bool:
        """Take note of a copy; whether a newer version is safe with it."""
        copies = self._copies.get((kept.first, kept.last))
        if copies is None:
            return False
        copies.add(kept.version)
        whole = set.intersection(*self._copies.values())
        return self.advance_secure_version(max(whole, default=self.secure_version))

    def advance_secure_version(self, version: int) -> bool:
        if version <= self.secure_version:
            return False
        self.secure_version = version
        for copies in self._copies.values():
            copies -= {older for older in copies if older < version}
        return True

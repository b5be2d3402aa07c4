"""One pipeline in the simulated world, timing only, with its story kept in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from potluck.bench.pipeline.workload import BATCH, costs
from potluck.job import make
from potluck.journal import Instant, Journal, Record
from potluck.loops.pipeline.mathematics import GhostStages
from potluck.loops.progress import Books, Ending
from potluck.model.feed import Feed
from potluck.run.pipeline import PipelineSetup
from potluck.worlds.simulated import clock
from potluck.worlds.simulated.pool import Pool
from potluck.worlds.simulated.world import World

__all__ = ["Trial", "run"]


class Trial:
    """What happened, and when."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    def commits(self) -> list[tuple[float, int]]:
        """When the run first stood at each number of batches."""
        found: list[tuple[float, int]] = []
        for note in self._instants("committed"):
            reached = note.fields["batch"] + 1
            if not found or reached > found[-1][1]:
                found.append((note.at, reached))
        return found

    def period(self, first: int, last: int) -> float:
        """Mean seconds from batch to batch between two of them."""
        at = {reached: when for when, reached in self.commits()}
        return (at[last] - at[first]) / (last - first)

    def partitions(self) -> list[Mapping[str, Any]]:
        return [note.fields for note in self._instants("partition")]

    def next_after(self, moment: float) -> float:
        """Seconds from a death until the run is further than it was then, in whichever layout."""
        return next(when for when, _ in self.commits() if when > moment) - moment

    def cost_of(self, moment: float, last: int, period: float) -> float:
        """Seconds that a death cost: how much later a batch is committed than at this pace from that moment on."""
        reached = max((batch for when, batch in self.commits() if when <= moment), default=0)
        at = {batch: when for when, batch in self.commits()}
        return at[last] - moment - (last - reached) * period

    def notice_after(self, moment: float) -> float:
        return next(note.at for note in self._instants("lost") if note.at > moment) - moment

    def further_after(self, moment: float) -> float:
        """Seconds from a death until a new layout has got the run further than the old one had."""
        flowing = moment + self.flows_after(moment)
        return next(when for when, _ in self.commits() if when > flowing) - moment

    def flows_after(self, moment: float) -> float:
        """Seconds from a moment until batches flow in a new layout."""
        return next(note.at for note in self._instants("partition") if note.at > moment) - moment

    def rolled_back(self) -> int:
        """Batches that were committed and taken back."""
        return sum(note.fields["before"] - note.fields["to"] for note in self._instants("rolled back"))

    def _instants(self, name: str) -> list[Instant]:
        return [record for record in self._records if isinstance(record, Instant) and record.name == name]


class _Tape(Journal):
    """A journal that is only kept in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        self.records.append(record)


class _Until:
    """Rules of a run that ends after some batches and keeps nothing but, now and then, a checkpoint."""

    def __init__(self, batches: int, checkpoint: int) -> None:
        self._batches = batches
        self._checkpoint = checkpoint

    def ending(self, books: Books, now: float) -> Ending | None:
        return Ending("done", "") if books.round >= self._batches else None

    def interruption(self) -> Ending | None:
        return None

    def wants_score(self, round: int) -> bool:
        return round == self._batches

    def save_due(self, round: int) -> bool:
        return bool(self._checkpoint) and round % self._checkpoint == 0

    def save(self, books: Books, now: float) -> None:
        pass

    def watch(self, books: Books, now: float) -> None:
        pass


def run(
    recipe: str,
    capacities: Sequence[float],
    batches: int,
    *,
    link: str = "lan",
    pipeline: Mapping[str, Any] | None = None,
    faults: Sequence[Mapping[str, Any]] = (),
    checkpoint: int = 0,
) -> Trial:
    """Let devices of these capacities (seconds in multiples of the reference device's) train for some batches."""
    devices = [
        {"name": f"device{place}", "flops": 1 / capacity, "memory": "64 GiB", "link": link}
        for place, capacity in enumerate(capacities)
    ]
    job = make(
        {
            "task": {"model": "mobilenet-v2-cifar", "data": "cifar10"},
            "recipe": recipe,
            "stop": {"rounds": batches},
            "timing_only": True,
            "fleet": {"devices": devices, "faults": list(faults)},
            "pipeline": {"batch": BATCH, **(pipeline or {})},
        }
    )
    assert job.pipeline is not None
    feed = Feed(BATCH, BATCH, job.pipeline.schedule.parts)
    setup = PipelineSetup(job, costs(), GhostStages(costs(), feed), feed, None)
    tape, rules = _Tape(), _Until(batches, checkpoint)
    world = World(job.fleet, job.seed, tape, Pool(0))
    ending = clock.run(
        world.run(
            lambda node: setup.coordinator(node, rules, Books()).main(),
            lambda node: setup.device_loop(node, None).main(),
        )
    )
    assert ending.status == "done", ending.reason
    return Trial(tape.records)

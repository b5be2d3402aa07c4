"""One pipeline in the simulated world, timing only, with its journal kept in memory.

The workload is MobileNetV2 on CIFAR-10 images in batches of 128. In this world a layer takes the seconds of
mobilenet-v2-cifar.toml, the lowest of 40 measurements on one core of a shared x86 machine (batch 32, scaled to 128), so
that the other work of the machine does not show; bytes come from the network itself. The reference device is that core;
a device of capacity c takes c times as long for everything. The planner is told none of this: it knows MACs and one
nominal speed for all devices, unless a trial gives it the devices' profiles.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

import torch

from potluck.job import make
from potluck.journal import Instant, Journal, JournalRecord
from potluck.loops.pipeline.compute_estimates import MeasuredLayers
from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.loops.pipeline.stage_backend import TimingOnlyStages
from potluck.loops.run_progress import RunOutcome, RunProgress
from potluck.model import zoo
from potluck.model.indexed_dataset import MicroBatches
from potluck.model.layer_chain import trace_layers
from potluck.model.metrics import TaskMetrics
from potluck.model.model_state import WeightLayout
from potluck.run.device_state import DeviceStates, SavedDeviceStates
from potluck.run.pipeline_setup import PipelineSetup, pipeline_chain_costs
from potluck.worlds.simulated import virtual_clock
from potluck.worlds.simulated.compute_pool import ComputePool
from potluck.worlds.simulated.simulated_world import SimulatedWorld

__all__ = ["BATCH", "PipelineTrial", "chain_costs", "reference_seconds", "run_pipeline_trial", "world_costs"]

BATCH = 128


@cache
def chain_costs() -> PipelineCosts:
    """The costs by MACs, which is what the planner knows."""
    with torch.device("meta"):
        module = zoo.build_model("mobilenet-v2-cifar", classes=10)
    chain = trace_layers(module, (3, 32, 32))
    return pipeline_chain_costs(chain, WeightLayout.of_chain(chain), moments=1)


@cache
def reference_seconds() -> MeasuredLayers:
    """What each layer really takes on the reference device, for one sample."""
    measured = tomllib.loads(resources.files(__package__).joinpath("mobilenet-v2-cifar.toml").read_text())
    forward, backward = (
        [ms / 1000 / measured["batch"] for ms in measured[key]] for key in ("forward_ms", "backward_ms")
    )
    return MeasuredLayers(forward, backward)


@cache
def nominal_flops() -> float:
    """The speed of the reference device by MACs and seconds of the whole network; every device is declared with it."""
    return chain_costs().stage_flop(0, chain_costs().layer_count - 1, 1) / sum(reference_seconds().both)


def world_costs(capacities: Sequence[float]) -> PipelineCosts:
    """The costs by MACs, and beside them what each device really takes."""
    costs, true = chain_costs(), reference_seconds()
    return replace(
        costs,
        measured={
            f"device{index}": replace(
                costs,
                forward_flop=[capacity * seconds * nominal_flops() for seconds in true.forward],
                backward_flop=[capacity * seconds * nominal_flops() for seconds in true.backward],
            )
            for index, capacity in enumerate(capacities)
        },
    )


class PipelineTrial:
    """What happened in a run and when, read from its journal."""

    def __init__(self, records: Sequence[JournalRecord]) -> None:
        self._records = records

    def commit_times(self) -> list[tuple[float, int]]:
        """When the run first reached each number of batches."""
        times: list[tuple[float, int]] = []
        for record in self._instants_named("committed"):
            reached = record.fields["batch"] + 1
            if not times or reached > times[-1][1]:
                times.append((record.at, reached))
        return times

    def mean_period_s(self, first: int, last: int) -> float:
        """Mean seconds per batch between two of them."""
        at = {reached: when for when, reached in self.commit_times()}
        return (at[last] - at[first]) / (last - first)

    def partition_records(self) -> list[Mapping[str, Any]]:
        return [record.fields for record in self._instants_named("partition")]

    def next_commit_after(self, moment: float) -> float:
        """Seconds from a crash to the next committed batch, in the old layout or the new one."""
        return next(when for when, _ in self.commit_times() if when > moment) - moment

    def crash_cost_s(self, moment: float, last: int, period: float) -> float:
        """Seconds lost to a crash: how much later a batch is committed than with this period since the crash."""
        reached = max((batch for when, batch in self.commit_times() if when <= moment), default=0)
        at = {batch: when for when, batch in self.commit_times()}
        return at[last] - moment - (last - reached) * period

    def notice_after(self, moment: float) -> float:
        return next(record.at for record in self._instants_named("lost") if record.at > moment) - moment

    def progress_after(self, moment: float) -> float:
        """Seconds from a crash until a new layout commits its first batch."""
        flowing = moment + self.flow_resumes_after(moment)
        return next(when for when, _ in self.commit_times() if when > flowing) - moment

    def flow_resumes_after(self, moment: float) -> float:
        """Seconds from a moment until batches flow in a new layout."""
        return next(record.at for record in self._instants_named("partition") if record.at > moment) - moment

    def rolled_back_batches(self) -> int:
        """Batches that were committed and rolled back."""
        return sum(record.fields["before"] - record.fields["to"] for record in self._instants_named("rolled back"))

    def _instants_named(self, name: str) -> list[Instant]:
        return [record for record in self._records if isinstance(record, Instant) and record.name == name]


class _MemoryJournal(Journal):
    """A journal that keeps its records in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[JournalRecord] = []

    def write_record(self, record: JournalRecord) -> None:
        self.records.append(record)


class _BatchLimitRules:
    """Rules of a run that stops after some batches and writes nothing."""

    metrics = TaskMetrics()

    def __init__(self, batches: int, checkpoint: int) -> None:
        self._batches = batches
        self._checkpoint = checkpoint

    def stop_outcome(self, progress: RunProgress, now: float) -> RunOutcome | None:
        return RunOutcome("done", "") if progress.round >= self._batches else None

    def interrupt_outcome(self) -> RunOutcome | None:
        return None

    def evaluation_due(self, round: int) -> bool:
        return round == self._batches

    def checkpoint_due(self, round: int) -> bool:
        return bool(self._checkpoint) and round % self._checkpoint == 0

    def save_checkpoint(self, progress: RunProgress, now: float) -> None:
        pass

    def report_progress(self, progress: RunProgress, now: float) -> None:
        pass

    def keep_best(self, progress: RunProgress) -> None:
        pass

    def check_may_commit(self) -> None:
        pass


def run_pipeline_trial(
    recipe: str,
    capacities: Sequence[float],
    batches: int,
    *,
    link: str | Sequence[Any] = "lan",
    pipeline: Mapping[str, Any] | None = None,
    faults: Sequence[Mapping[str, Any]] = (),
    checkpoint: int = 0,
) -> PipelineTrial:
    """Train for some batches on devices of these capacities: their times relative to the reference device.

    `link` is one for all devices, or one for each.
    """
    devices = [
        {"name": f"device{index}", "flops": nominal_flops(), "memory": "64 GiB", "link": each}
        for index, each in enumerate([link] * len(capacities) if isinstance(link, str) else link)
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
    feed = MicroBatches(BATCH, BATCH, job.pipeline.schedule.micro_batch_count)
    costs = world_costs(capacities)
    setup = PipelineSetup(job, costs, TimingOnlyStages(costs, feed), feed, None)
    journal, rules = _MemoryJournal(), _BatchLimitRules(batches, checkpoint)
    world = SimulatedWorld(job.fleet, job.seed, journal, ComputePool(0))
    outcome = virtual_clock.run_virtual_time(
        world.run(
            lambda node: setup.build_coordinator(node, rules, RunProgress()).main(),
            lambda node: setup.build_device_loop(node, DeviceStates(SavedDeviceStates(), {})).main(),
        )
    )
    assert outcome.status == "done", outcome.reason
    return PipelineTrial(journal.records)

"""What a job is expected to take: a round on each kind of device, or a pipeline's stages and its slowest link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from potluck.errors import UserError
from potluck.fleet import Device, Fleet
from potluck.job import Job
from potluck.loops.backends import TurnIdentity
from potluck.loops.device_costs import DeviceCosts
from potluck.loops.pipeline.pipeline_planner import PipelinePlan
from potluck.model.submodel_context import SubmodelPlan
from potluck.planning.schedule import StageDurations
from potluck.planning.segments import (
    STRATEGIES,
    SegmentPlan,
    Strategy,
    WorkerCosts,
    forecast_duplex,
    plan_segments,
)

__all__ = ["JobPlan", "PipelineForecast", "RoundForecast", "forecast_rounds"]


class RoundForecast(NamedTuple):
    """A kind of device and what one round takes it, alone with the coordinator at nominal speed."""

    devices: tuple[str, ...]
    worker: WorkerCosts  # seconds per layer of the first and last mini-batch
    local_s: float  # computing between them, which no transfer can hide behind
    overhead_s: float
    latency_s: float
    rounds_s: dict[str, float]  # by strategy
    memory_bytes: float = 0.0  # that a turn takes; see potluck.run.device_memory

    def transfer_plans(self, strategy: Strategy) -> tuple[SegmentPlan, SegmentPlan]:
        """How the pull and the push are cut into segments."""
        worker, costs = self.worker, (self.overhead_s, self.latency_s)
        pull = plan_segments(worker.forward, worker.pull, costs[0], "pull", strategy, costs[1])
        return pull, plan_segments(worker.backward, worker.push, costs[0], "push", strategy, costs[1])

    def to_dict(self) -> dict[str, Any]:
        segments = {}
        for name in self.rounds_s:
            if name != "duplex":
                pull, push = self.transfer_plans(name)  # type: ignore[arg-type]
                segments[name] = {"pull": pull.segments, "push": push.segments}
        return {
            "devices": self.devices,
            "round_s": self.rounds_s,
            "local_s": self.local_s,
            "memory_bytes": round(self.memory_bytes),
            "segments": segments,
        }


class PipelineForecast(NamedTuple):
    """The layout of a pipeline and how long each stage computes and sends."""

    plan: PipelinePlan
    durations: StageDurations
    batch_size: int
    micro_batches: int
    left_out: tuple[str, ...]  # devices that would only slow it down
    memory_bytes: tuple[float, ...] = ()  # that each stage takes
    flushes: bool = False  # whether nothing is in flight between two batches

    def stages(self) -> list[dict[str, Any]]:
        """One entry for each stage, in order."""
        plan, durations = self.plan, self.durations
        return [
            {
                "device": device,
                "layers": [plan.stage_layers[index][0], plan.stage_layers[index][-1]],
                "compute_s": durations.forward[index] + durations.backward[index],
                "send_s": durations.down[index] if index < len(durations.down) else 0.0,
                "window": plan.windows[index],
                "memory_bytes": round(self.memory_bytes[index]) if self.memory_bytes else 0,
            }
            for index, device in enumerate(plan.order)
        ]


@dataclass(frozen=True)
class JobPlan:
    """What `potluck.plan` returns: the forecasts of a job of rounds, or the layout of a pipeline."""

    job: Job  # without `auto`
    rounds: Sequence[RoundForecast] = ()
    submodel: SubmodelPlan | None = None
    pipeline: PipelineForecast | None = None

    def round_of(self, device: str | None) -> RoundForecast:
        """The forecast of a device, by default of the slowest."""
        if device is None:
            return max(self.rounds, key=lambda forecast: forecast.rounds_s["sequential"])
        for forecast in self.rounds:
            if device in forecast.devices:
                return forecast
        names = ", ".join(forecast.devices[0] for forecast in self.rounds)
        raise UserError(f"--device: no device is called {device!r}; choose from {names}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `potluck plan --json` prints it."""
        if self.pipeline is not None:
            period = self.pipeline.plan.period
            return {"job": self.job.title, "period_s": period, "stages": self.pipeline.stages()}
        extra = {} if self.submodel is None else self.submodel.data
        return {"job": self.job.title, "devices": [forecast.to_dict() for forecast in self.rounds], **extra}


def forecast_rounds(job: Job, turn_costs: Callable[[TurnIdentity], DeviceCosts]) -> list[RoundForecast]:
    """Each kind of device of the fleet once, equal ones together."""
    kinds: dict[tuple[float, float, int, object], list[Device]] = {}
    for device in job.fleet.members:
        kinds.setdefault((device.flops, device.memory, id(device.profile), _nominal_link(device)), []).append(device)
    return [_forecast_round(job, alike, turn_costs(TurnIdentity(alike[0].name, 0, 0))) for alike in kinds.values()]


def _nominal_link(device: Device) -> tuple[float, ...]:
    link = device.link
    return float(link.up), float(link.down), float(link.latency), float(link.overhead)


def _forecast_round(job: Job, alike: Sequence[Device], costs: DeviceCosts) -> RoundForecast:
    device, central, rounds = alike[0], job.fleet.coordinator.resolved_link, job.rounds
    passes = rounds.local.batches_per_turn(rounds.batching.batches_per_epoch(job.samples))
    size, *others = rounds.batching.turn_batch_sizes(job.samples, passes)
    forecast = RoundForecast(
        devices=tuple(device.name for device in alike),
        worker=_worker_costs(device, job.fleet, costs, size),
        local_s=costs.step_s(sum(others)),
        overhead_s=float(device.link.overhead + central.overhead),
        latency_s=2.0 * float(device.link.latency + central.latency),  # every message is answered
        rounds_s={},
    )
    times: dict[str, float] = {
        name: sum(plan.makespan for plan in forecast.transfer_plans(name)) for name in STRATEGIES
    }
    if not others:
        times["duplex"] = forecast_duplex([forecast.worker], forecast.overhead_s, forecast.latency_s).iteration
    return forecast._replace(rounds_s={name: time + forecast.local_s for name, time in times.items()})


def _worker_costs(device: Device, fleet: Fleet, costs: DeviceCosts, size: int) -> WorkerCosts:
    central = fleet.coordinator.resolved_link
    down, up = min(device.link.down, central.up), min(device.link.up, central.down)
    return WorkerCosts(
        forward=[costs.forward_s(layer, size) for layer in range(costs.layer_count)],
        backward=[costs.backward_s(layer, size) for layer in range(costs.layer_count)],
        pull=[nbytes / down for nbytes in costs.pull_bytes],
        push=[nbytes / up for nbytes in costs.push_bytes],
    )

"""`potluck plan`: what a round would take on each kind of device, for each way of cutting its transfers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from potluck.cli import plan_class_groups
from potluck.cli.command_options import AsJson, Data, JobFile, Sets, job_file_path
from potluck.cli.console import open_console, plain_table
from potluck.cli.number_format import format_seconds
from potluck.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from potluck.fleet import Device, Fleet
    from potluck.job import Job
    from potluck.planning.gantt_chart import GanttBar
    from potluck.planning.segments import SegmentPlan, Strategy, WorkerCosts
    from potluck.run.rounds_setup import RoundsSetup
    from potluck.task import Task

__all__ = ["RoundForecast", "forecast_rounds", "plan_command"]

OnDevice = Annotated[str | None, typer.Option("--device", help="Draw this device (default: the slowest).")]
Width = Annotated[int, typer.Option("--width", min=40, help="Columns of the drawing.")]


class RoundForecast(NamedTuple):
    """A kind of device and what one round takes it, alone with the coordinator at nominal speed."""

    devices: tuple[str, ...]
    worker: WorkerCosts  # seconds per layer of the first and last mini-batch
    local_s: float  # computing between them, which no transfer can hide behind
    overhead_s: float
    latency_s: float
    rounds_s: dict[str, float]  # by strategy

    def transfer_plans(self, strategy: Strategy) -> tuple[SegmentPlan, SegmentPlan]:
        from potluck.planning.segments import plan_segments

        worker, costs = self.worker, (self.overhead_s, self.latency_s)
        pull = plan_segments(worker.forward, worker.pull, costs[0], "pull", strategy, costs[1])
        return pull, plan_segments(worker.backward, worker.push, costs[0], "push", strategy, costs[1])


def plan_command(
    job: JobFile,
    settings: Sets = None,
    data: Data = None,
    device: OnDevice = None,
    width: Width = 100,
    as_json: AsJson = False,
) -> None:
    """Predict what a round takes, device by device."""
    from potluck.cli.run_command import add_cwd_to_path
    from potluck.job import load_job
    from potluck.run.rounds_setup import RoundsSetup
    from potluck.task import build_task

    add_cwd_to_path()
    wanted = load_job(job_file_path(job), [*(settings or []), "timing_only=true"])
    own = build_task(wanted.task, data) if isinstance(wanted.task, str) else None
    if wanted.pipeline is not None:
        _show_pipeline_plan(wanted, own, data, width, as_json)
        return
    setup = RoundsSetup.from_job(wanted, own, data)
    found = forecast_rounds(wanted, setup)
    drawn = _select_forecast(found, device)
    if as_json:
        devices = [_forecast_to_json(outlook) for outlook in found]
        typer.echo(
            json.dumps(
                {
                    "job": wanted.title,
                    "devices": devices,
                    **plan_class_groups.class_groups_to_json(setup.job, setup.extractor),
                }
            )
        )
        return
    _print_forecasts(wanted, found)
    plan_class_groups.show_class_groups(setup.job, setup.extractor)
    _draw_timeline(drawn, width)


def _show_pipeline_plan(job: Job, own: Task | None, data: Path | None, width: int, as_json: bool) -> None:
    from potluck.cli import plan_pipeline
    from potluck.run.pipeline_setup import PipelineSetup

    setup = PipelineSetup.from_job(job, own, data)
    if as_json:
        typer.echo(plan_pipeline.pipeline_to_json(job, setup))
    else:
        plan_pipeline.show_pipeline(job, setup, width)


def forecast_rounds(job: Job, setup: RoundsSetup) -> list[RoundForecast]:
    """Each kind of device of the fleet once, those alike together."""
    kinds: dict[tuple[float, int, object], list[Device]] = {}
    for device in job.fleet.members:
        kinds.setdefault((device.flops, id(device.profile), _nominal_link(device)), []).append(device)
    return [_forecast_round(alike, job, setup) for alike in kinds.values()]


def _nominal_link(device: Device) -> tuple[float, ...]:
    """What of a link matters at its nominal figures."""
    link = device.link
    return float(link.up), float(link.down), float(link.latency), float(link.overhead)


def _forecast_round(alike: Sequence[Device], job: Job, setup: RoundsSetup) -> RoundForecast:
    from potluck.loops.backends import TurnIdentity
    from potluck.planning.segments import STRATEGIES, forecast_duplex

    device, centre, rounds = alike[0], job.fleet.coordinator.resolved_link, job.rounds
    passes = rounds.local.batches_per_turn(rounds.batching.batches_per_epoch(job.samples))
    size, *others = rounds.batching.turn_batch_sizes(job.samples, passes)
    outlook = RoundForecast(
        devices=tuple(device.name for device in alike),
        worker=_worker_costs(device, job.fleet, setup, size),
        local_s=setup.turn_costs(TurnIdentity(device.name, 0, 0)).step_s(sum(others)),
        overhead_s=float(device.link.overhead + centre.overhead),
        latency_s=2.0 * float(device.link.latency + centre.latency),  # there is an answer to every message
        rounds_s={},
    )
    times: dict[str, float] = {name: sum(part.makespan for part in outlook.transfer_plans(name)) for name in STRATEGIES}
    if not others:
        times["duplex"] = forecast_duplex([outlook.worker], outlook.overhead_s, outlook.latency_s).iteration
    return outlook._replace(rounds_s={name: time + outlook.local_s for name, time in times.items()})


def _worker_costs(device: Device, fleet: Fleet, setup: RoundsSetup, size: int) -> WorkerCosts:
    from potluck.loops.backends import TurnIdentity
    from potluck.planning.segments import WorkerCosts

    costs, centre = setup.turn_costs(TurnIdentity(device.name, 0, 0)), fleet.coordinator.resolved_link
    down, up = min(device.link.down, centre.up), min(device.link.up, centre.down)
    return WorkerCosts(
        forward=[costs.forward_s(layer, size) for layer in range(costs.layer_count)],
        backward=[costs.backward_s(layer, size) for layer in range(costs.layer_count)],
        pull=[nbytes / down for nbytes in costs.pull_bytes],
        push=[nbytes / up for nbytes in costs.push_bytes],
    )


def _forecast_to_json(outlook: RoundForecast) -> dict[str, Any]:
    cuts = {}
    for name in outlook.rounds_s:
        if name != "duplex":
            pull, push = outlook.transfer_plans(name)  # type: ignore[arg-type]
            cuts[name] = {"pull": pull.segments, "push": push.segments}
    return {"devices": outlook.devices, "round_s": outlook.rounds_s, "local_s": outlook.local_s, "segments": cuts}


def _print_forecasts(job: Job, found: Sequence[RoundForecast]) -> None:
    console = open_console()
    console.print(f"{job.title}, {job.recipe}: one round of each device, alone with the coordinator", markup=False)
    drawn = plain_table("device", *found[0].rounds_s)
    for outlook in found:
        first, *others = outlook.devices
        label = f"{first} and {len(others)} alike" if others else first
        drawn.add_row(label, *(format_seconds(time) for time in outlook.rounds_s.values()))
    console.print(drawn)
    if found[0].local_s and job.rounds.local.batches_per_turn(1) != job.rounds.local.batches_per_turn(2):
        console.print(f"each device is taken to hold {job.samples} samples (set `samples` to change that)")


def _select_forecast(found: Sequence[RoundForecast], name: str | None) -> RoundForecast:
    if name is None:
        return max(found, key=lambda outlook: outlook.rounds_s["sequential"])
    for outlook in found:
        if name in outlook.devices:
            return outlook
    raise UserError(f"--device: no device is called {name!r}")


def _draw_timeline(outlook: RoundForecast, width: int) -> None:
    from potluck.planning.gantt_chart import draw_gantt

    strategies: tuple[Strategy, ...] = ("sequential", "optimal")
    for strategy in strategies:
        typer.echo(f"\n{outlook.devices[0]}, {strategy}: {format_seconds(outlook.rounds_s[strategy])}")
        typer.echo(draw_gantt(_timeline_bars(outlook, strategy), width))


def _timeline_bars(outlook: RoundForecast, strategy: Strategy) -> list[GanttBar]:
    """Pull and forward, the local work in between, then backward and push, all on one axis."""
    from potluck.planning.gantt_chart import GanttBar, segment_bars

    worker, costs = outlook.worker, (outlook.overhead_s, outlook.latency_s)
    pull, push = outlook.transfer_plans(strategy)
    drawn = segment_bars(pull, worker.forward, worker.pull, *costs)
    later = pull.makespan + outlook.local_s
    if outlook.local_s:
        drawn.append(GanttBar("local", pull.makespan, later, "more mini-batches"))
    second = segment_bars(push, worker.backward, worker.push, *costs)
    return drawn + [bar._replace(start=bar.start + later, end=bar.end + later) for bar in second]

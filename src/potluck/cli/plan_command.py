"""`potluck plan`: predicts what a round takes on each kind of device, for each transfer strategy."""

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

OnDevice = Annotated[
    str | None, typer.Option("--device", help="The device whose timeline is drawn (default: the slowest).")
]
Width = Annotated[int, typer.Option("--width", min=40, help="Width of the drawing in columns.")]


class RoundForecast(NamedTuple):
    """What one round takes a kind of device, alone with the coordinator and at nominal speed."""

    devices: tuple[str, ...]
    worker: WorkerCosts  # seconds per layer of the first and last mini-batch
    local_s: float  # computing between them, during which nothing is transferred
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
    """Predict how long a round takes on each device. Draws the timeline of one of them."""
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
    forecasts = forecast_rounds(wanted, setup)
    drawn = _select_forecast(forecasts, device)
    if as_json:
        devices = [_forecast_to_json(forecast) for forecast in forecasts]
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
    _print_forecasts(wanted, forecasts)
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
    """One forecast per kind of device: devices with the same speed and link share one."""
    kinds: dict[tuple[float, object], list[Device]] = {}
    for device in job.fleet.members:
        kinds.setdefault((device.flops, _nominal_link(device)), []).append(device)
    return [_forecast_round(alike, job, setup) for alike in kinds.values()]


def _nominal_link(device: Device) -> tuple[float, ...]:
    """The figures of a link that the forecast uses."""
    link = device.link
    return float(link.up), float(link.down), float(link.latency), float(link.overhead)


def _forecast_round(alike: Sequence[Device], job: Job, setup: RoundsSetup) -> RoundForecast:
    from potluck.loops.backends import TurnIdentity
    from potluck.planning.segments import STRATEGIES, forecast_duplex

    device, centre, rounds = alike[0], job.fleet.coordinator.resolved_link, job.rounds
    passes = rounds.local.batches_per_turn(rounds.batching.batches_per_epoch(job.samples))
    size, *others = rounds.batching.turn_batch_sizes(job.samples, passes)
    forecast = RoundForecast(
        devices=tuple(device.name for device in alike),
        worker=_worker_costs(device, job.fleet, setup, size),
        local_s=setup.turn_costs(TurnIdentity(device.name, 0, 0)).step_s(sum(others)),
        overhead_s=float(device.link.overhead + centre.overhead),
        latency_s=2.0 * float(device.link.latency + centre.latency),  # every message is acknowledged
        rounds_s={},
    )
    times: dict[str, float] = {
        name: sum(part.makespan for part in forecast.transfer_plans(name)) for name in STRATEGIES
    }
    if not others:
        times["duplex"] = forecast_duplex([forecast.worker], forecast.overhead_s, forecast.latency_s).iteration
    return forecast._replace(rounds_s={name: time + forecast.local_s for name, time in times.items()})


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


def _forecast_to_json(forecast: RoundForecast) -> dict[str, Any]:
    cuts = {}
    for name in forecast.rounds_s:
        if name != "duplex":
            pull, push = forecast.transfer_plans(name)  # type: ignore[arg-type]
            cuts[name] = {"pull": pull.segments, "push": push.segments}
    return {"devices": forecast.devices, "round_s": forecast.rounds_s, "local_s": forecast.local_s, "segments": cuts}


def _print_forecasts(job: Job, forecasts: Sequence[RoundForecast]) -> None:
    console = open_console()
    console.print(
        f"{job.title}, {job.recipe}: time of one round for each device, alone with the coordinator", markup=False
    )
    drawn = plain_table("device", *forecasts[0].rounds_s)
    for forecast in forecasts:
        first, *others = forecast.devices
        label = f"{first} and {len(others)} alike" if others else first
        drawn.add_row(label, *(format_seconds(time) for time in forecast.rounds_s.values()))
    console.print(drawn)
    if forecasts[0].local_s and job.rounds.local.batches_per_turn(1) != job.rounds.local.batches_per_turn(2):
        console.print(f"assuming that each device has {job.samples} samples; override it with --set samples=N")


def _select_forecast(forecasts: Sequence[RoundForecast], name: str | None) -> RoundForecast:
    if name is None:
        return max(forecasts, key=lambda forecast: forecast.rounds_s["sequential"])
    for forecast in forecasts:
        if name in forecast.devices:
            return forecast
    names = ", ".join(device for forecast in forecasts for device in forecast.devices[:1])
    raise UserError(f"--device: no device is called {name!r}; choose from {names}")


def _draw_timeline(forecast: RoundForecast, width: int) -> None:
    from potluck.planning.gantt_chart import draw_gantt

    strategies: tuple[Strategy, ...] = ("sequential", "optimal")
    for strategy in strategies:
        typer.echo(f"\n{forecast.devices[0]}, {strategy}: {format_seconds(forecast.rounds_s[strategy])}")
        typer.echo(draw_gantt(_timeline_bars(forecast, strategy), width))


def _timeline_bars(forecast: RoundForecast, strategy: Strategy) -> list[GanttBar]:
    """Pull and forward, the local work in between, then backward and push; the last bar ends with the round."""
    from potluck.planning.gantt_chart import GanttBar, segment_bars

    worker, costs = forecast.worker, (forecast.overhead_s, forecast.latency_s)
    pull, push = forecast.transfer_plans(strategy)
    bars = segment_bars(pull, worker.forward, worker.pull, *costs)
    bars += [GanttBar("latency", bar.end, bar.end + forecast.latency_s) for bar in bars if bar.row == "pull"]
    backward_at = pull.makespan + forecast.local_s
    if forecast.local_s:
        bars.append(GanttBar("local", pull.makespan, backward_at, "more mini-batches"))
    second = segment_bars(push, worker.backward, worker.push, *costs)
    bars += [bar._replace(start=bar.start + backward_at, end=bar.end + backward_at) for bar in second]
    return [*bars, GanttBar("latency", bars[-1].end, backward_at + push.makespan)]

"""`potluck plan`: predicts a round on each kind of device for each transfer strategy, or the stages of a pipeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.command_options import AsJson, Data, JobFile, Sets, job_file_path
from potluck.cli.console import open_console, plain_table
from potluck.cli.number_format import format_bytes, format_seconds

if TYPE_CHECKING:
    from potluck.job import Job
    from potluck.model.submodel_context import SubmodelPlan
    from potluck.planning.gantt_chart import GanttBar
    from potluck.planning.segments import Strategy
    from potluck.run.job_plan import RoundForecast
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potluck.job import Job
    from potluck.planning.gantt_chart import GanttBar
    from potluck.run.job_plan import PipelineForecast

__all__ = ["plan_command", "show_pipeline"]


OnDevice = Annotated[
    str | None, typer.Option("--device", help="The device whose timeline is drawn (default: the slowest).")
]
Width = Annotated[int, typer.Option("--width", min=40, help="Width of the drawing in columns.")]

_DRAWN_BATCHES = 8


def plan_command(
    job: JobFile,
    settings: Sets = None,
    data: Data = None,
    device: OnDevice = None,
    width: Width = 100,
    as_json: AsJson = False,
) -> None:
    """Predict how long a round takes on each device. Draws the timeline of one of them."""
    from potluck.cli.plan_command import show_pipeline
    from potluck.cli.run_command import add_cwd_to_path
    from potluck.job import load_job
    from potluck.run.prepared_job import plan

    add_cwd_to_path()
    outlook = plan(load_job(job_file_path(job), [*(settings or []), "timing_only=true"]), data=data)
    if outlook.pipeline is not None and not as_json:
        show_pipeline(outlook.job, outlook.pipeline, width)
        return
    drawn = None if outlook.pipeline is not None else outlook.round_of(device)
    if drawn is None or as_json:
        typer.echo(json.dumps(outlook.to_dict()))
        return
    _print_forecasts(outlook.job, outlook.rounds)
    if outlook.submodel is not None:
        _print_submodel_plan(outlook.submodel)
    _draw_timeline(drawn, width)


def _print_forecasts(job: Job, forecasts: Sequence[RoundForecast]) -> None:
    console = open_console()
    console.print(
        f"{job.title}, {job.recipe}: time of one round for each device, alone with the coordinator", markup=False
    )
    drawn = plain_table("device", *forecasts[0].rounds_s, "memory")
    for forecast in forecasts:
        first, *others = forecast.devices
        label = f"{first} and {len(others)} alike" if others else first
        times = (format_seconds(time) for time in forecast.rounds_s.values())
        drawn.add_row(label, *times, format_bytes(forecast.memory_bytes))
    console.print(drawn)
    if forecasts[0].local_s and job.rounds.local.batches_per_turn(1) != job.rounds.local.batches_per_turn(2):
        console.print(f"assuming that each device has {job.samples} samples; override it with --set samples=N")


def _print_submodel_plan(plan: SubmodelPlan) -> None:
    console = open_console()
    for title, columns, rows in plan.tables:
        typer.echo(f"\n{title}")
        drawn = plain_table(*columns)
        for row in rows:
            drawn.add_row(*row)
        console.print(drawn)
    for line in plan.lines:
        console.print(line, markup=False, soft_wrap=True)


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


def show_pipeline(job: Job, forecast: PipelineForecast, width: int) -> None:
    """Print the partition as a table, and draw the timeline of the first batches."""
    from potluck.planning.gantt_chart import draw_gantt

    plan, console = forecast.plan, open_console()
    console.print(
        f"{job.title}, {job.recipe}: one batch of {forecast.batch_size} samples every {format_seconds(plan.period)}"
    )
    console.print(_stage_table(forecast))
    console.print(_bottleneck_text(forecast))
    if forecast.left_out:
        console.print(f"left out because they would slow the pipeline down: {', '.join(forecast.left_out)}")
    typer.echo("")
    typer.echo(draw_gantt(_stage_bars(forecast), width))


def _stage_table(forecast: PipelineForecast) -> Any:
    drawn = plain_table("stage", "device", "layers", "computes", "sends on", "batches in flight", "memory")
    for index, stage in enumerate(forecast.stages()):
        first, last = stage["layers"]
        sends = format_seconds(stage["send_s"]) if stage["send_s"] else "-"
        row = (
            str(index),
            stage["device"],
            f"{first}-{last}",
            format_seconds(stage["compute_s"]),
            sends,
            str(stage["window"]),
            format_bytes(stage["memory_bytes"]),
        )
        drawn.add_row(*row)
    return drawn


def _bottleneck_text(forecast: PipelineForecast) -> str:
    """What limits the period, in one sentence."""
    plan, durations = forecast.plan, forecast.durations
    computing = [forward + backward for forward, backward in zip(durations.forward, durations.backward, strict=True)]
    busiest = max(range(len(computing)), key=lambda index: computing[index])
    if computing[busiest] >= durations.min_period():
        limit = f"stage {busiest} on {plan.order[busiest]} is the slowest"
    else:
        link = max(range(len(durations.down)), key=lambda index: max(durations.down[index], durations.up[index]))
        limit = f"the link from {plan.order[link]} to {plan.order[link + 1]} is the slowest"
    least = forecast.micro_batches * durations.min_period()
    if plan.period <= 1.001 * least:
        return limit
    cause = "a pipeline that is not flushed after every batch" if forecast.flushes else "more batches in flight"
    return f"{limit}; {cause} would bring it down to {format_seconds(least)}"


def _stage_bars(forecast: PipelineForecast) -> list[GanttBar]:
    from potluck.planning.gantt_chart import GanttBar
    from potluck.planning.schedule import simulate_pipeline

    plan, micro_batches = forecast.plan, forecast.micro_batches
    if forecast.flushes:
        batches = max(2, _DRAWN_BATCHES // micro_batches)
        timeline = simulate_pipeline(forecast.durations, batches, "gpipe", micro_batches=micro_batches)
    else:
        timeline = simulate_pipeline(forecast.durations, max(2 * micro_batches, _DRAWN_BATCHES), windows=plan.windows)
    return [
        GanttBar(f"{index} {plan.order[index]}", bar.begin, bar.end, f"{bar.kind[0].upper()}{bar.batch}")
        for index, stage in enumerate(timeline.bars)
        for bar in stage
    ]

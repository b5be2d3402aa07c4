"""`potluck plan` for a pipeline: which device runs which layers, what limits it, and a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from potluck.cli.console import open_console, plain_table
from potluck.cli.number_format import format_seconds

if TYPE_CHECKING:
    from potluck.job import Job
    from potluck.loops.pipeline.pipeline_planner import PipelinePlan
    from potluck.planning.gantt_chart import GanttBar
    from potluck.planning.schedule import StageDurations
    from potluck.run.job_plan import PipelineForecast

__all__ = ["show_pipeline"]

_DRAWN_BATCHES = 8


def show_pipeline(job: Job, forecast: PipelineForecast, width: int) -> None:
    """Print the partition as a table, and draw the timeline of the first batches."""
    from potluck.planning.gantt_chart import draw_gantt

    plan, console = forecast.plan, open_console()
    console.print(
        f"{job.title}, {job.recipe}: one batch of {forecast.batch_size} samples every {format_seconds(plan.period)}"
    )
    console.print(_stage_table(forecast))
    console.print(_bottleneck_text(plan, forecast.durations, forecast.micro_batches))
    if forecast.left_out:
        console.print(f"left out because they would slow the pipeline down: {', '.join(forecast.left_out)}")
    typer.echo("")
    typer.echo(draw_gantt(_timeline_bars(forecast), width))


def _stage_table(forecast: PipelineForecast) -> Any:
    drawn = plain_table("stage", "device", "layers", "computes", "sends on", "batches in flight")
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
        )
        drawn.add_row(*row)
    return drawn


def _bottleneck_text(plan: PipelinePlan, durations: StageDurations, micro_batches: int) -> str:
    """What limits the period, in one sentence."""
    computing = [forward + backward for forward, backward in zip(durations.forward, durations.backward, strict=True)]
    busiest = max(range(len(computing)), key=lambda index: computing[index])
    if computing[busiest] >= durations.min_period():
        limit = f"stage {busiest} on {plan.order[busiest]} is the slowest"
    else:
        link = max(range(len(durations.down)), key=lambda index: max(durations.down[index], durations.up[index]))
        limit = f"the link from {plan.order[link]} to {plan.order[link + 1]} is the slowest"
    least = micro_batches * durations.min_period()
    if plan.period <= 1.001 * least:
        return limit
    cause = "more batches in flight" if micro_batches == 1 else "a pipeline that is not flushed after every batch"
    return f"{limit}; {cause} would bring it down to {format_seconds(least)}"


def _timeline_bars(forecast: PipelineForecast) -> list[GanttBar]:
    from potluck.planning.gantt_chart import GanttBar
    from potluck.planning.schedule import simulate_pipeline

    plan, durations, micro_batches = forecast.plan, forecast.durations, forecast.micro_batches
    timeline = simulate_pipeline(
        durations.forward, durations.backward, durations.down, durations.up, max(2, _DRAWN_BATCHES // micro_batches),
        "1f1b" if micro_batches == 1 else "gpipe", windows=plan.windows if micro_batches == 1 else None,
        micro_batches=micro_batches,
    )  # fmt: skip
    return [
        GanttBar(f"{index} {plan.order[index]}", bar.begin, bar.end, f"{bar.kind[0].upper()}{bar.batch}")
        for index, stage in enumerate(timeline.bars)
        for bar in stage
    ]

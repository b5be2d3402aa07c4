"""`potluck plan` for a pipeline: which device runs which layers, what limits it, and a timeline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from potluck.cli.console import open_console, plain_table
from potluck.cli.number_format import format_seconds

if TYPE_CHECKING:
    from potluck.job import Job
    from potluck.loops.pipeline.pipeline_planner import PipelinePlan, PipelinePlanner
    from potluck.planning.gantt_chart import GanttBar
    from potluck.planning.schedule import StageDurations
    from potluck.run.pipeline_setup import PipelineSetup

__all__ = ["pipeline_to_json", "show_pipeline"]

_DRAWN_BATCHES = 8


def show_pipeline(job: Job, setup: PipelineSetup, width: int) -> None:
    """Print the partition as a table, and draw the timeline of the first batches."""
    from potluck.planning.gantt_chart import draw_gantt

    planner, plan = _plan_stages(setup)
    durations = planner.stage_durations(plan.cuts, plan.order)
    console = open_console()
    console.print(
        f"{job.title}, {job.recipe}: one batch of {setup.batch_size} samples every {format_seconds(plan.period)}"
    )
    console.print(_stage_table(plan, durations))
    console.print(_bottleneck_text(plan, durations, setup.settings.schedule.micro_batch_count))
    left_out = [device.name for device in job.fleet.members if device.name not in plan.order]
    if left_out:
        console.print(f"left out because they would slow the pipeline down: {', '.join(left_out)}")
    typer.echo("")
    typer.echo(draw_gantt(_timeline_bars(setup, plan, durations), width))


def pipeline_to_json(job: Job, setup: PipelineSetup) -> str:
    """The same for `--json`."""
    planner, plan = _plan_stages(setup)
    durations = planner.stage_durations(plan.cuts, plan.order)
    stages = [_stage_to_json(plan, durations, index) for index in range(len(plan.order))]
    return json.dumps({"job": job.title, "period_s": plan.period, "stages": stages})


def _plan_stages(setup: PipelineSetup) -> tuple[PipelinePlanner, PipelinePlan]:
    planner = setup.build_planner()
    return planner, planner.plan_layout(setup.candidate_devices())


def _stage_to_json(plan: PipelinePlan, durations: StageDurations, index: int) -> dict[str, Any]:
    layers = plan.stage_layers[index]
    return {
        "device": plan.order[index],
        "layers": [layers[0], layers[-1]],
        "compute_s": durations.forward[index] + durations.backward[index],
        "send_s": durations.down[index] if index < len(durations.down) else 0.0,
        "window": plan.windows[index],
    }


def _stage_table(plan: PipelinePlan, durations: StageDurations) -> Any:
    drawn = plain_table("stage", "device", "layers", "computes", "sends on", "batches in flight")
    for index in range(len(plan.order)):
        stage = _stage_to_json(plan, durations, index)
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


def _timeline_bars(setup: PipelineSetup, plan: PipelinePlan, durations: StageDurations) -> list[GanttBar]:
    from potluck.planning.gantt_chart import GanttBar
    from potluck.planning.schedule import simulate_pipeline

    micro_batches = setup.settings.schedule.micro_batch_count
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

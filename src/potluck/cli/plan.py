"""`potluck plan`: what a round would take on each kind of device, for each way of cutting its transfers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from potluck.cli import plan_groups
from potluck.cli.console import open_console, plain_table
from potluck.cli.figures import seconds
from potluck.cli.options import AsJson, Data, JobFile, Sets, job_path
from potluck.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from potluck.fleet import Device, Fleet
    from potluck.job import Job
    from potluck.planning.gantt import Bar
    from potluck.planning.segments import Plan, Strategy, Worker
    from potluck.run.setup import Setup
    from potluck.task import Task

__all__ = ["Outlook", "outlooks", "plan"]

OnDevice = Annotated[str | None, typer.Option("--device", help="Draw this device (default: the slowest).")]
Width = Annotated[int, typer.Option("--width", min=40, help="Columns of the drawing.")]


class Outlook(NamedTuple):
    """A kind of device and what one round takes it, alone with the coordinator at nominal speed."""

    devices: tuple[str, ...]
    worker: Worker  # seconds per layer of the first and last mini-batch
    inner_s: float  # computing between them, which no transfer can hide behind
    overhead_s: float
    latency_s: float
    rounds_s: dict[str, float]  # by strategy

    def transfers(self, strategy: Strategy) -> tuple[Plan, Plan]:
        from potluck.planning.segments import plan

        worker, costs = self.worker, (self.overhead_s, self.latency_s)
        pull = plan(worker.forward, worker.pull, costs[0], "pull", strategy, costs[1])
        return pull, plan(worker.backward, worker.push, costs[0], "push", strategy, costs[1])


def plan(
    job: JobFile,
    settings: Sets = None,
    data: Data = None,
    device: OnDevice = None,
    width: Width = 100,
    as_json: AsJson = False,
) -> None:
    """Predict what a round takes, device by device."""
    from potluck.cli.run import find_own_code
    from potluck.job import load
    from potluck.run.setup import Setup
    from potluck.task import build

    find_own_code()
    wanted = load(job_path(job), [*(settings or []), "timing_only=true"])
    own = build(wanted.task, data) if isinstance(wanted.task, str) else None
    if wanted.pipeline is not None:
        _plan_pipeline(wanted, own, data, width, as_json)
        return
    setup = Setup.of(wanted, own, data)
    found = outlooks(wanted, setup)
    drawn = _chosen(found, device)
    if as_json:
        devices = [_as_json(outlook) for outlook in found]
        typer.echo(
            json.dumps({"job": wanted.title, "devices": devices, **plan_groups.as_json(setup.job, setup.carver)})
        )
        return
    _say(wanted, found)
    plan_groups.show(setup.job, setup.carver)
    _draw(drawn, width)


def _plan_pipeline(job: Job, own: Task | None, data: Path | None, width: int, as_json: bool) -> None:
    from potluck.cli import plan_pipeline
    from potluck.run.pipeline import PipelineSetup

    setup = PipelineSetup.of(job, own, data)
    if as_json:
        typer.echo(plan_pipeline.as_json(job, setup))
    else:
        plan_pipeline.show(job, setup, width)


def outlooks(job: Job, setup: Setup) -> list[Outlook]:
    """Each kind of device of the fleet once, those alike together."""
    kinds: dict[tuple[float, object], list[Device]] = {}
    for device in job.fleet.members:
        kinds.setdefault((device.flops, _nominal(device)), []).append(device)
    return [_outlook(alike, job, setup) for alike in kinds.values()]


def _nominal(device: Device) -> tuple[float, ...]:
    """What of a link matters at its nominal figures."""
    link = device.link
    return float(link.up), float(link.down), float(link.latency), float(link.overhead)


def _outlook(alike: Sequence[Device], job: Job, setup: Setup) -> Outlook:
    from potluck.loops.mathematics import Whom
    from potluck.planning.segments import STRATEGIES, duplex

    device, centre, rounds = alike[0], job.fleet.coordinator.access, job.rounds
    passes = rounds.local.passes(rounds.batching.per_epoch(job.samples))
    size, *others = rounds.batching.sizes(job.samples, passes)
    outlook = Outlook(
        devices=tuple(device.name for device in alike),
        worker=_worker(device, job.fleet, setup, size),
        inner_s=setup.turn_costs(Whom(device.name, 0, 0)).step(sum(others)),
        overhead_s=float(device.link.overhead + centre.overhead),
        latency_s=2.0 * float(device.link.latency + centre.latency),  # there is an answer to every message
        rounds_s={},
    )
    times: dict[str, float] = {name: sum(part.makespan for part in outlook.transfers(name)) for name in STRATEGIES}
    if not others:
        times["duplex"] = duplex([outlook.worker], outlook.overhead_s, outlook.latency_s).iteration
    return outlook._replace(rounds_s={name: time + outlook.inner_s for name, time in times.items()})


def _worker(device: Device, fleet: Fleet, setup: Setup, size: int) -> Worker:
    from potluck.loops.mathematics import Whom
    from potluck.planning.segments import Worker

    costs, centre = setup.turn_costs(Whom(device.name, 0, 0)), fleet.coordinator.access
    down, up = min(device.link.down, centre.up), min(device.link.up, centre.down)
    return Worker(
        forward=[costs.forward(layer, size) for layer in range(costs.layers)],
        backward=[costs.backward(layer, size) for layer in range(costs.layers)],
        pull=[nbytes / down for nbytes in costs.pull_bytes],
        push=[nbytes / up for nbytes in costs.push_bytes],
    )


def _as_json(outlook: Outlook) -> dict[str, Any]:
    cuts = {}
    for name in outlook.rounds_s:
        if name != "duplex":
            pull, push = outlook.transfers(name)  # type: ignore[arg-type]
            cuts[name] = {"pull": pull.segments, "push": push.segments}
    return {"devices": outlook.devices, "round_s": outlook.rounds_s, "local_s": outlook.inner_s, "segments": cuts}


def _say(job: Job, found: Sequence[Outlook]) -> None:
    console = open_console()
    console.print(f"{job.title}, {job.recipe}: one round of each device, alone with the coordinator", markup=False)
    drawn = plain_table("device", *found[0].rounds_s)
    for outlook in found:
        first, *others = outlook.devices
        label = f"{first} and {len(others)} alike" if others else first
        drawn.add_row(label, *(seconds(time) for time in outlook.rounds_s.values()))
    console.print(drawn)
    if found[0].inner_s and job.rounds.local.passes(1) != job.rounds.local.passes(2):
        console.print(f"each device is taken to hold {job.samples} samples (set `samples` to change that)")


def _chosen(found: Sequence[Outlook], name: str | None) -> Outlook:
    if name is None:
        return max(found, key=lambda outlook: outlook.rounds_s["sequential"])
    for outlook in found:
        if name in outlook.devices:
            return outlook
    raise UserError(f"--device: no device is called {name!r}")


def _draw(outlook: Outlook, width: int) -> None:
    from potluck.planning.gantt import draw

    strategies: tuple[Strategy, ...] = ("sequential", "optimal")
    for strategy in strategies:
        typer.echo(f"\n{outlook.devices[0]}, {strategy}: {seconds(outlook.rounds_s[strategy])}")
        typer.echo(draw(_bars(outlook, strategy), width))


def _bars(outlook: Outlook, strategy: Strategy) -> list[Bar]:
    """Pull and forward, the local work in between, then backward and push, all on one axis."""
    from potluck.planning.gantt import Bar, bars

    worker, costs = outlook.worker, (outlook.overhead_s, outlook.latency_s)
    pull, push = outlook.transfers(strategy)
    drawn = bars(pull, worker.forward, worker.pull, *costs)
    later = pull.makespan + outlook.inner_s
    if outlook.inner_s:
        drawn.append(Bar("local", pull.makespan, later, "more mini-batches"))
    second = bars(push, worker.backward, worker.push, *costs)
    return drawn + [bar._replace(start=bar.start + later, end=bar.end + later) for bar in second]

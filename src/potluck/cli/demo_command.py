"""`potluck demo`: three recipes train the same model on the same uneven fleet; who is there first, and why?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from potluck.cli.command_options import AsJson, Quiet, Threads
from potluck.cli.console import open_console, plain_table
from potluck.cli.number_format import format_bytes, format_percent, format_seconds
from potluck.cli.progress_table import choose_display
from potluck.cli.sparkline import draw_sparkline
from potluck.cli.stop_signal import StopSignal
from potluck.errors import UserError

if TYPE_CHECKING:
    from potluck.cli.progress_table import ProgressDisplay
    from potluck.run import Result
    from potluck.run.run_store import RunStore

__all__ = ["RECIPES", "DemoRun", "demo_command", "demo_job", "explain_winner"]

TARGET = 0.95
# Each recipe has the learning rate that took it there soonest over several seeds, of 0.02, 0.05, 0.1, 0.2 and 0.4.
RECIPES: dict[str, dict[str, Any]] = {
    "sync-sgd": {"server": {"lr": 0.1}},
    "fedavg": {"local": {"lr": 0.4}},
    "fedbuff": {"local": {"lr": 0.4}},
}

Point = tuple[float, float]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Another seed, another split and another fleet's luck.")]


class DemoRun(NamedTuple):
    """One recipe's run: how it ended, and its accuracy over virtual time."""

    recipe: str
    result: Result
    curve: list[Point]

    @property
    def time_s(self) -> float:
        return float(self.result.summary["time_s"])

    @property
    def reached_target(self) -> bool:
        return bool((self.result.summary["accuracy"] or 0.0) >= TARGET)


def demo_command(seed: Seed = 0, threads: Threads = None, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Let three recipes race on a simulated fleet (under a minute)."""
    said = quiet or as_json
    if not said:
        typer.echo(_introduction_text())
    with StopSignal() as stopping:
        attempts = [_run_recipe(recipe, seed, threads, said, stopping) for recipe in RECIPES]
    if as_json:
        typer.echo(json.dumps(_runs_to_json(attempts)))
        return
    _print_results(attempts)
    typer.echo("\n" + "\n".join(explain_winner(attempts)))
    typer.echo("\nnext: potluck new, potluck run job.toml")


def demo_job(recipe: str, seed: int) -> dict[str, Any]:
    """The job of one recipe; all but the recipe is the same for all."""
    return {
        "task": {"model": "cnn", "data": "drawn-digits", "options": {"hidden": 32, "dropout": [0, 0]}},
        "split": {"kind": "dirichlet", "alpha": 0.5},
        "fleet": "kitchen-table",
        "recipe": recipe,
        "rounds": RECIPES[recipe],
        "stop": {"accuracy": TARGET, "rounds": 150},
        "seed": seed,
    }


def _introduction_text() -> str:
    return (
        "Eight uneven devices (a desktop, two laptops, a Jetson, three Raspberry Pis, a phone) train a small\n"
        "convolutional network on drawn digits. Each holds its own skewed share of them. The training is real,\n"
        f"the devices and their links are simulated. Three recipes race to {format_percent(TARGET)} accuracy.\n"
    )


def _run_recipe(recipe: str, seed: int, threads: int | None, quiet: bool, stopping: StopSignal) -> DemoRun:
    from potluck.run import simulate

    curve: list[Point] = []
    with choose_display(quiet, stopping) as shown:
        result = simulate(
            demo_job(recipe, seed), threads=threads, watch=_curve_recorder(curve, shown), stopping=stopping
        )
    if result.status == "interrupted":
        raise KeyboardInterrupt
    if result.status == "failed":
        raise UserError(f"{recipe} failed: {result.reason}")
    if not quiet:
        typer.echo(f"{recipe}: {result.reason} ({format_seconds(result.summary['wall_s'])} here)", err=True)
    return DemoRun(recipe, result, curve)


class _curve_recorder:  # noqa: N801
    """Passes every round on and keeps the curve."""

    def __init__(self, curve: list[Point], shown: ProgressDisplay) -> None:
        self._curve = curve
        self._shown = shown

    def __call__(self, keeper: RunStore, now: float) -> None:
        if "accuracy" in keeper.progress.score:
            self._curve.append((now, keeper.progress.score["accuracy"]))
        self._shown(keeper, now)


def _print_results(attempts: list[DemoRun]) -> None:
    console = open_console()
    last = max(attempt.time_s for attempt in attempts)
    table = plain_table("recipe", f"to {format_percent(TARGET)}", "rounds", "sent", "accuracy over virtual time")
    table.columns[-1].justify = "left"
    for attempt in attempts:
        found = attempt.result.summary
        when = format_seconds(attempt.time_s) if attempt.reached_target else "not reached"
        curve = draw_sparkline(attempt.curve, 48, last)
        table.add_row(attempt.recipe, when, str(found["rounds"]), format_bytes(found["bytes"]), curve)
    console.print()
    console.print(table)


def explain_winner(attempts: list[DemoRun]) -> list[str]:
    """Who won, by how much and why, from what the devices were seen to do."""
    arrived = sorted((attempt for attempt in attempts if attempt.reached_target), key=lambda attempt: attempt.time_s)
    if not arrived:
        return [f"Nobody reached {format_percent(TARGET)} within the budget."]
    first, *others = arrived
    margins = [f"{other.time_s / first.time_s:.1f} times as fast as {other.recipe}" for other in others]
    by_bytes = sorted(arrived, key=lambda attempt: int(attempt.result.summary["bytes"]))
    sent = ", ".join(f"{attempt.recipe} {format_bytes(attempt.result.summary['bytes'])}" for attempt in by_bytes)
    waited = ", ".join(f"{_waiting_fraction(attempt):.0%} under {attempt.recipe}" for attempt in arrived)
    return [
        f"{first.recipe} won: there after {format_seconds(first.time_s)} of virtual time, {' and '.join(margins)}.",
        f"Sent until then: {sent}.",
        f"Why: the devices spent their time waiting, {waited}.",
        f"{_compare_extremes(arrived)}.",
        f"What held {arrived[-1].recipe} up: {arrived[-1].result.summary['limit']}.",
    ]


def _waiting_fraction(attempt: DemoRun) -> float:
    """The share of all devices' time that was waiting."""
    devices = attempt.result.summary["devices"].values()
    return float(sum(device["wait_s"] for device in devices) / (len(devices) * attempt.time_s))


def _compare_extremes(arrived: list[DemoRun]) -> str:
    """The updates of the devices that waited most and least under the slowest recipe, under each recipe."""
    devices = arrived[-1].result.summary["devices"]
    quick, slow = (pick(devices, key=lambda name: devices[name]["wait_s"]) for pick in (max, min))
    counts = [
        f"{attempt.recipe} {_update_count(attempt, quick)} and {_update_count(attempt, slow)}" for attempt in arrived
    ]
    return f"Updates from {quick} and from {slow}: {', '.join(counts)}"


def _update_count(attempt: DemoRun, device: str) -> int:
    return int(attempt.result.summary["devices"].get(device, {}).get("updates", 0))


def _runs_to_json(attempts: list[DemoRun]) -> dict[str, Any]:
    return {
        "target": TARGET,
        "winner": next(
            iter(sorted((a for a in attempts if a.reached_target), key=lambda a: a.time_s)), attempts[0]
        ).recipe,
        "verdict": explain_winner(attempts),
        "recipes": {a.recipe: {**a.result.summary, "reached": a.reached_target, "curve": a.curve} for a in attempts},
    }

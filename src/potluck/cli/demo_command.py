"""`potluck demo`: three recipes train the same model on the same uneven fleet. Which one is fastest, and why?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from potluck.cli.command_options import AsJson, Quiet, Threads
from potluck.cli.console import open_console, plain_table
from potluck.cli.number_format import format_bytes, format_fraction, format_percent, format_seconds
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
# Each recipe has the learning rate that reached the target soonest over several seeds, of 0.02, 0.05, 0.1, 0.2, 0.4.
RECIPES: dict[str, dict[str, Any]] = {
    "sync-sgd": {"server": {"lr": 0.1}},
    "fedavg": {"local": {"lr": 0.4}},
    "fedbuff": {"local": {"lr": 0.4}},
}

Point = tuple[float, float]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the data split, the model and the fleet.")]


class DemoRun(NamedTuple):
    """One recipe's run: its result, and its accuracy over simulated time."""

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
    """Compare three recipes on a simulated fleet (under a minute)."""
    silent = quiet or as_json
    if not silent:
        typer.echo(_introduction_text())
    with StopSignal() as stopping:
        attempts = [_run_recipe(recipe, seed, threads, silent, stopping) for recipe in RECIPES]
    if as_json:
        typer.echo(json.dumps(_runs_to_json(attempts)))
        return
    _print_results(attempts)
    typer.echo("\n" + "\n".join(explain_winner(attempts)))
    typer.echo("\nnext: potluck new, potluck run job.toml")


def demo_job(recipe: str, seed: int) -> dict[str, Any]:
    """The job of one recipe; the jobs differ in nothing but the recipe and its learning rate."""
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
        "convolutional network on drawn digits. Each holds a different, skewed sample of them. The training is\n"
        f"real; the devices and their links are simulated. Three recipes race to {format_percent(TARGET)} accuracy.\n"
    )


def _run_recipe(recipe: str, seed: int, threads: int | None, quiet: bool, stopping: StopSignal) -> DemoRun:
    from potluck.run import simulate

    curve: list[Point] = []
    with choose_display(quiet, stopping) as display:
        result = simulate(
            demo_job(recipe, seed), threads=threads, watch=_CurveRecorder(curve, display), stopping=stopping
        )
    if result.status == "interrupted":
        raise KeyboardInterrupt
    if result.status == "failed":
        raise UserError(f"{recipe} failed: {result.reason}")
    if not quiet:
        typer.echo(f"{recipe}: {result.reason} ({format_seconds(display.elapsed_s())} wall-clock)", err=True)
    return DemoRun(recipe, result, curve)


class _CurveRecorder:
    """Records the accuracy of every round and forwards the round to the display."""

    def __init__(self, curve: list[Point], display: ProgressDisplay) -> None:
        self._curve = curve
        self._display = display

    def __call__(self, store: RunStore, now: float) -> None:
        if "accuracy" in store.progress.score:
            self._curve.append((now, store.progress.score["accuracy"]))
        self._display(store, now)


def _print_results(attempts: list[DemoRun]) -> None:
    console = open_console()
    last = max(attempt.time_s for attempt in attempts)
    table = plain_table("recipe", f"to {format_percent(TARGET)}", "rounds", "sent", "accuracy over simulated time")
    table.columns[-1].justify = "left"
    for attempt in attempts:
        summary = attempt.result.summary
        when = format_seconds(attempt.time_s) if attempt.reached_target else "not reached"
        curve = draw_sparkline(attempt.curve, 48, last)
        table.add_row(attempt.recipe, when, str(summary["rounds"]), format_bytes(summary["bytes"]), curve)
    console.print()
    console.print(table)


def explain_winner(attempts: list[DemoRun]) -> list[str]:
    """Which recipe won, by how much and why, judged by what the devices did."""
    arrived = sorted((attempt for attempt in attempts if attempt.reached_target), key=lambda attempt: attempt.time_s)
    if not arrived:
        return [f"No recipe reached {format_percent(TARGET)} within the budget."]
    first, *others = arrived
    margins = [f"{other.time_s / first.time_s:.1f} times as fast as {other.recipe}" for other in others]
    by_bytes = sorted(arrived, key=lambda attempt: int(attempt.result.summary["bytes"]))
    sent = ", ".join(f"{attempt.recipe} {format_bytes(attempt.result.summary['bytes'])}" for attempt in by_bytes)
    waited = ", ".join(f"{format_fraction(_waiting_fraction(attempt), 1)} with {attempt.recipe}" for attempt in arrived)
    return [
        f"{first.recipe} won: it took {format_seconds(first.time_s)} of simulated time, {' and '.join(margins)}.",
        f"Sent by then: {sent}.",
        f"Why: devices spent much of their time waiting: {waited}.",
        f"{_compare_extremes(arrived)}.",
        f"What slowed {arrived[-1].recipe} down: {arrived[-1].result.summary['limit']}.",
    ]


def _waiting_fraction(attempt: DemoRun) -> float:
    """The fraction of all devices' time that was spent waiting."""
    devices = attempt.result.summary["devices"].values()
    return float(sum(device["wait_s"] for device in devices) / (len(devices) * attempt.time_s))


def _compare_extremes(arrived: list[DemoRun]) -> str:
    """Updates per recipe of the two devices that waited most and least with the slowest recipe."""
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

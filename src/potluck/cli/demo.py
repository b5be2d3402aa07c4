"""`potluck demo`: three recipes train the same model on the same uneven fleet; who is there first, and why?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from potluck.cli.console import open_console, plain_table
from potluck.cli.figures import amount, percent, seconds
from potluck.cli.live import progress
from potluck.cli.options import AsJson, Quiet, Threads
from potluck.cli.sparkline import sparkline
from potluck.cli.stopping import Stopping
from potluck.errors import UserError

if TYPE_CHECKING:
    from potluck.cli.live import Progress
    from potluck.run import Result
    from potluck.run.keeper import Keeper

__all__ = ["RECIPES", "Attempt", "demo", "job", "verdict"]

TARGET = 0.95
# Each recipe has the learning rate that took it there soonest over several seeds, of 0.02, 0.05, 0.1, 0.2 and 0.4.
RECIPES: dict[str, dict[str, Any]] = {
    "sync-sgd": {"server": {"lr": 0.1}},
    "fedavg": {"local": {"lr": 0.4}},
    "fedbuff": {"local": {"lr": 0.4}},
}

Point = tuple[float, float]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Another seed, another split and another fleet's luck.")]


class Attempt(NamedTuple):
    """One recipe's run: how it ended, and its accuracy over virtual time."""

    recipe: str
    result: Result
    curve: list[Point]

    @property
    def time_s(self) -> float:
        return float(self.result.summary["time_s"])

    @property
    def arrived(self) -> bool:
        return bool((self.result.summary["accuracy"] or 0.0) >= TARGET)


def demo(seed: Seed = 0, threads: Threads = None, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Let three recipes race on a simulated fleet (under a minute)."""
    said = quiet or as_json
    if not said:
        typer.echo(_introduction())
    with Stopping() as stopping:
        attempts = [_attempt(recipe, seed, threads, said, stopping) for recipe in RECIPES]
    if as_json:
        typer.echo(json.dumps(_as_json(attempts)))
        return
    _say(attempts)
    typer.echo("\n" + "\n".join(verdict(attempts)))
    typer.echo("\nnext: potluck new, potluck run job.toml")


def job(recipe: str, seed: int) -> dict[str, Any]:
    """The job of one recipe; all but the recipe is the same for all."""
    return {
        "task": {"model": "cnn", "data": "digits", "options": {"hidden": 32, "dropout": [0, 0]}},
        "split": {"kind": "dirichlet", "alpha": 0.5},
        "fleet": "kitchen-table",
        "recipe": recipe,
        "rounds": RECIPES[recipe],
        "stop": {"accuracy": TARGET, "rounds": 150},
        "seed": seed,
    }


def _introduction() -> str:
    return (
        "Eight uneven devices (a desktop, two laptops, a Jetson, three Raspberry Pis, a phone) train a small\n"
        "convolutional network on handwritten digits. Each holds its own skewed share of them. The training is real,\n"
        f"the devices and their links are simulated. Three recipes race to {percent(TARGET)} accuracy.\n"
    )


def _attempt(recipe: str, seed: int, threads: int | None, quiet: bool, stopping: Stopping) -> Attempt:
    from potluck.run import simulate

    curve: list[Point] = []
    with progress(quiet, stopping) as shown:
        result = simulate(job(recipe, seed), threads=threads, watch=_recorded(curve, shown), stopping=stopping)
    if result.status == "interrupted":
        raise KeyboardInterrupt
    if result.status == "failed":
        raise UserError(f"{recipe} failed: {result.reason}")
    if not quiet:
        typer.echo(f"{recipe}: {result.reason} ({seconds(result.summary['wall_s'])} here)", err=True)
    return Attempt(recipe, result, curve)


class _recorded:  # noqa: N801 (used like a function)
    """Passes every round on and keeps the curve."""

    def __init__(self, curve: list[Point], shown: Progress) -> None:
        self._curve = curve
        self._shown = shown

    def __call__(self, keeper: Keeper, now: float) -> None:
        if "accuracy" in keeper.books.score:
            self._curve.append((now, keeper.books.score["accuracy"]))
        self._shown(keeper, now)


def _say(attempts: list[Attempt]) -> None:
    console = open_console()
    last = max(attempt.time_s for attempt in attempts)
    table = plain_table("recipe", f"to {percent(TARGET)}", "rounds", "sent", "accuracy over virtual time")
    table.columns[-1].justify = "left"
    for attempt in attempts:
        found = attempt.result.summary
        when = seconds(attempt.time_s) if attempt.arrived else "not reached"
        curve = sparkline(attempt.curve, 48, last)
        table.add_row(attempt.recipe, when, str(found["rounds"]), amount(found["bytes"]), curve)
    console.print()
    console.print(table)


def verdict(attempts: list[Attempt]) -> list[str]:
    """Who won, by how much and why, from what the devices were seen to do."""
    arrived = sorted((attempt for attempt in attempts if attempt.arrived), key=lambda attempt: attempt.time_s)
    if not arrived:
        return [f"Nobody reached {percent(TARGET)} within the budget."]
    first, *others = arrived
    margins = [f"{other.time_s / first.time_s:.1f} times as fast as {other.recipe}" for other in others]
    by_bytes = sorted(arrived, key=lambda attempt: int(attempt.result.summary["bytes"]))
    sent = ", ".join(f"{attempt.recipe} {amount(attempt.result.summary['bytes'])}" for attempt in by_bytes)
    waited = ", ".join(f"{_waiting(attempt):.0%} under {attempt.recipe}" for attempt in arrived)
    return [
        f"{first.recipe} won: there after {seconds(first.time_s)} of virtual time, {' and '.join(margins)}.",
        f"Sent until then: {sent}.",
        f"Why: the devices spent their time waiting, {waited}.",
        f"{_two_ends(arrived)}.",
        f"What held {arrived[-1].recipe} up: {arrived[-1].result.summary['limit']}.",
    ]


def _waiting(attempt: Attempt) -> float:
    """The share of all devices' time that was waiting."""
    devices = attempt.result.summary["devices"].values()
    return float(sum(device["wait_s"] for device in devices) / (len(devices) * attempt.time_s))


def _two_ends(arrived: list[Attempt]) -> str:
    """The updates of the devices that waited most and least under the slowest recipe, under each recipe."""
    devices = arrived[-1].result.summary["devices"]
    quick, slow = (pick(devices, key=lambda name: devices[name]["wait_s"]) for pick in (max, min))
    counts = [f"{attempt.recipe} {_updates(attempt, quick)} and {_updates(attempt, slow)}" for attempt in arrived]
    return f"Updates from {quick} and from {slow}: {', '.join(counts)}"


def _updates(attempt: Attempt, device: str) -> int:
    return int(attempt.result.summary["devices"].get(device, {}).get("updates", 0))


def _as_json(attempts: list[Attempt]) -> dict[str, Any]:
    return {
        "target": TARGET,
        "winner": next(iter(sorted((a for a in attempts if a.arrived), key=lambda a: a.time_s)), attempts[0]).recipe,
        "verdict": verdict(attempts),
        "recipes": {a.recipe: {**a.result.summary, "reached": a.arrived, "curve": a.curve} for a in attempts},
    }

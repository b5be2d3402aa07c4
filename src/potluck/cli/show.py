"""`potluck recipes` and `potluck fleets`: what there is to choose from, and where its figures come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from potluck.cli.figures import seconds
from potluck.cli.options import AsJson

if TYPE_CHECKING:
    from potluck.fleet import Link
    from potluck.fleet.devices import Board

__all__ = ["fleets", "recipes"]


def recipes(as_json: AsJson = False) -> None:
    """List the recipes and who published them."""
    from potluck.recipes import CATALOGUE

    if as_json:
        typer.echo(json.dumps({"recipes": {name: dict(recipe._asdict()) for name, recipe in CATALOGUE.items()}}))
        return
    width = max(map(len, CATALOGUE))
    for name, recipe in CATALOGUE.items():
        typer.echo(f"{name:<{width}}  {recipe.summary}")
        typer.echo(f"{'':<{width}}  {recipe.source}")


def fleets(as_json: AsJson = False) -> None:
    """List the built-in fleets, devices and links."""
    from potluck.fleet import LINKS, PRESETS
    from potluck.job import fleets as built_in

    if as_json:
        typer.echo(json.dumps(_as_json(built_in(), PRESETS, LINKS)))
        return
    _say('fleets (in a job: fleet = "NAME")', built_in().items())
    _say('devices (in a fleet: preset = "NAME")', ((name, _board(board)) for name, board in PRESETS.items()))
    _say('links (in a device: link = "NAME")', ((name, _link(link)) for name, link in LINKS.items()))


def _say(title: str, entries: Iterable[tuple[str, str]]) -> None:
    typer.echo(title)
    found: Sequence[tuple[str, str]] = list(entries)
    width = max(len(name) for name, _ in found)
    for name, text in found:
        typer.echo(f"  {name:<{width}}  {text}")


def _board(board: Board) -> str:
    figures = f"{board.flops}, {board.memory}, {board.watts:g} W, {board.link}"
    return f"{figures}; {board.share:.0%} of the peak of {board.source}"


def _link(link: Link) -> str:
    return f"{link.up} up, {link.down} down, {seconds(link.latency)} latency, {seconds(link.overhead)} per transfer"


def _as_json(found: dict[str, str], boards: dict[str, Board], links: dict[str, Link]) -> dict[str, Any]:
    from potluck.settings import encode

    return {
        "fleets": found,
        "devices": {name: encode(board) | {"flops": str(board.flops)} for name, board in boards.items()},
        "links": {name: encode(link) for name, link in links.items()},
    }

"""`potluck recipes` and `potluck fleets`: what there is to choose from, and where its figures come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from potluck.cli.command_options import AsJson
from potluck.cli.number_format import format_seconds

if TYPE_CHECKING:
    from potluck.fleet import Link
    from potluck.fleet.fleet_devices import DevicePreset

__all__ = ["fleets_command", "recipes_command"]


def recipes_command(as_json: AsJson = False) -> None:
    """List the recipes and who published them."""
    from potluck.recipes import CATALOGUE

    if as_json:
        typer.echo(json.dumps({"recipes": {name: dict(recipe._asdict()) for name, recipe in CATALOGUE.items()}}))
        return
    width = max(map(len, CATALOGUE))
    for name, recipe in CATALOGUE.items():
        typer.echo(f"{name:<{width}}  {recipe.summary}")
        typer.echo(f"{'':<{width}}  {recipe.source}")


def fleets_command(as_json: AsJson = False) -> None:
    """List the built-in fleets, devices and links."""
    from potluck.fleet import LINKS, PRESETS
    from potluck.job import built_in_fleets as built_in

    if as_json:
        typer.echo(json.dumps(_fleets_to_json(built_in(), PRESETS, LINKS)))
        return
    _print_entries('fleets (in a job: fleet = "NAME")', built_in().items())
    _print_entries(
        'devices (in a fleet: preset = "NAME")', ((name, _board_text(board)) for name, board in PRESETS.items())
    )
    _print_entries('links (in a device: link = "NAME")', ((name, _link_text(link)) for name, link in LINKS.items()))


def _print_entries(title: str, entries: Iterable[tuple[str, str]]) -> None:
    typer.echo(title)
    found: Sequence[tuple[str, str]] = list(entries)
    width = max(len(name) for name, _ in found)
    for name, text in found:
        typer.echo(f"  {name:<{width}}  {text}")


def _board_text(board: DevicePreset) -> str:
    figures = f"{board.flops}, {board.memory}, {board.watts:g} W, {board.link}"
    return f"{figures}; {board.share:.0%} of the peak of {board.source}"


def _link_text(link: Link) -> str:
    latency, overhead = format_seconds(link.latency), format_seconds(link.overhead)
    return f"{link.up} up, {link.down} down, {latency} latency, {overhead} per transfer"


def _fleets_to_json(found: dict[str, str], boards: dict[str, DevicePreset], links: dict[str, Link]) -> dict[str, Any]:
    from potluck.settings import encode_settings

    return {
        "fleets": found,
        "devices": {name: encode_settings(board) | {"flops": str(board.flops)} for name, board in boards.items()},
        "links": {name: encode_settings(link) for name, link in links.items()},
    }

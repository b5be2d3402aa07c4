"""`potluck recipes` and `potluck fleets`: what a job can choose from, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

from potluck.cli.command_options import AsJson
from potluck.cli.number_format import format_fraction, format_seconds

if TYPE_CHECKING:
    from potluck.fleet import Link
    from potluck.fleet.fleet_devices import DevicePreset
    from potluck.recipes import Recipe

__all__ = ["fleets_command", "recipes_command"]


def recipes_command(as_json: AsJson = False) -> None:
    """List all recipes: what they need of a model, origin and source."""
    from potluck.recipes import known_recipes

    recipes = known_recipes()
    if as_json:
        typer.echo(json.dumps({"recipes": {name: _recipe_to_json(recipe) for name, recipe in recipes.items()}}))
        return
    width = max(map(len, recipes))
    for name, recipe in recipes.items():
        typer.echo(f"{name:<{width}}  {recipe.summary}")
        if recipe.needs:
            typer.echo(f"{'':<{width}}  needs {recipe.needs}")
        typer.echo(f"{'':<{width}}  {recipe.origin}{f': {recipe.source}' if recipe.source else ''}")


def _recipe_to_json(recipe: Recipe) -> dict[str, Any]:
    return {**recipe._asdict(), "needs": recipe.needs}


def fleets_command(as_json: AsJson = False) -> None:
    """List the built-in fleets, and the presets for devices and links."""
    from potluck.fleet import LINKS, PRESETS
    from potluck.job import built_in_fleets

    if as_json:
        typer.echo(json.dumps(_fleets_to_json(built_in_fleets(), PRESETS, LINKS)))
        return
    _print_entries('fleets (in a job: fleet = "NAME")', built_in_fleets().items())
    _print_entries(
        'devices (in a fleet: preset = "NAME")', ((name, _preset_text(preset)) for name, preset in PRESETS.items())
    )
    _print_entries('links (in a device: link = "NAME")', ((name, _link_text(link)) for name, link in LINKS.items()))


def _print_entries(title: str, entries: Iterable[tuple[str, str]]) -> None:
    typer.echo(title)
    listed = list(entries)
    width = max(len(name) for name, _ in listed)
    for name, text in listed:
        typer.echo(f"  {name:<{width}}  {text}")


def _preset_text(preset: DevicePreset) -> str:
    figures = f"{preset.flops}, {preset.memory}, {preset.watts:g} W, {preset.link}"
    return f"{figures}; {format_fraction(preset.peak_fraction, 1)} of the peak of {preset.source}"


def _link_text(link: Link) -> str:
    latency, overhead = format_seconds(link.latency), format_seconds(link.overhead)
    return f"{link.up} up, {link.down} down, {latency} latency, {overhead} per transfer"


def _fleets_to_json(fleets: dict[str, str], presets: dict[str, DevicePreset], links: dict[str, Link]) -> dict[str, Any]:
    from potluck.settings import encode_settings

    return {
        "fleets": fleets,
        "devices": {name: encode_settings(preset) | {"flops": str(preset.flops)} for name, preset in presets.items()},
        "links": {name: encode_settings(link) for name, link in links.items()},
    }

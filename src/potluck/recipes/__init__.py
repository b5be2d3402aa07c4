"""Recipes: names for compositions of parts. What a job says itself takes precedence over its recipe.

Installed distributions add recipes by the entry point group `potluck.recipes`. The entry point's name is the name of
the recipe; its value is a mapping of settings, a `Recipe`, or a function without arguments that returns either.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from potluck.errors import PotluckWarning, SettingError
from potluck.recipes.recipe_catalogue import CATALOGUE, Recipe

__all__ = ["CATALOGUE", "ENTRY_POINT_GROUP", "Recipe", "find_recipe", "known_recipes"]

ENTRY_POINT_GROUP = "potluck.recipes"


def find_recipe(name: str) -> Recipe:
    """The recipe of this name; only that one is imported. SettingError if there is none that works."""
    registered = _registered_entry_points()
    if name in CATALOGUE:
        return CATALOGUE[name]
    if name in registered:
        try:
            return _load_entry_point(registered[name])
        except _EntryPointError as error:
            raise SettingError("recipe", str(error)) from error
    names = [*CATALOGUE, *registered]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? `potluck recipes` lists all" if close else f"choose from {', '.join(names)}"
    raise SettingError("recipe", f"{name!r} is not known; {hint}")


def known_recipes() -> dict[str, Recipe]:
    """All recipes by name, the built-in ones first; a registered one that does not work is left out with a warning."""
    recipes = dict(CATALOGUE)
    for name, entry_point in sorted(_registered_entry_points().items()):
        try:
            recipes[name] = _load_entry_point(entry_point)
        except _EntryPointError as error:
            _warn(f"recipe {error}")
    return recipes


class _EntryPointError(Exception):
    """An entry point that cannot be imported or is not a recipe."""


def _registered_entry_points() -> dict[str, metadata.EntryPoint]:
    """The entry points by name, none imported yet; a name that is already taken is refused with a warning."""
    registered: dict[str, metadata.EntryPoint] = {}
    for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        name, origin = entry_point.name, _distribution_name(entry_point)
        if name in CATALOGUE:
            _warn(f"recipe {name!r} of {origin} is ignored: a built-in recipe has this name; rename the entry point")
        elif name in registered and registered[name] != entry_point:
            other = _distribution_name(registered[name])
            _warn(f"recipe {name!r} of {origin} is ignored: {other} registers this name too; uninstall one of them")
        else:
            registered[name] = entry_point
    return registered


def _load_entry_point(entry_point: metadata.EntryPoint) -> Recipe:
    origin = _distribution_name(entry_point)
    problem = f"{entry_point.name!r} of {origin} ({entry_point.value}) does not work"
    try:
        value: Any = entry_point.load()
        summary = _first_doc_line(value) if callable(value) else ""
        value = value() if callable(value) else value
    except Exception as error:
        raise _EntryPointError(f"{problem}: {type(error).__name__}: {error}") from error
    if isinstance(value, Recipe):
        return value._replace(origin=origin)
    if not isinstance(value, Mapping):
        raise _EntryPointError(f"{problem}: expected a mapping of settings, got {type(value).__name__}")
    return Recipe(summary or f"registered as {entry_point.value}", "", value, origin)


def _first_doc_line(function: Callable[..., object]) -> str:
    return (function.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def _distribution_name(entry_point: metadata.EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else "an unknown distribution"


def _warn(text: str) -> None:
    warnings.warn(" ".join(text.split()), PotluckWarning, stacklevel=3)

"""Finds every key that a job may have, by introspection: each settings class at each place where it may stand."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from potluck.job import Job
from potluck.settings import Part, part_kinds

__all__ = ["key_place", "walk_keys"]

_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")


def key_place(path: str, owner: type[msgspec.Struct], key: str) -> str:
    """A key by its place, as in `rounds.codec(top-k).ratio`; every index of a list is `*`."""
    kind = f"({owner.__struct_config__.tag})" if issubclass(owner, Part) else ""
    return f"{_INDEX.sub('*', path)}{kind}.{key}".lstrip(".")


def walk_keys(table: type[msgspec.Struct] = Job, path: str = "") -> Iterator[str]:
    """The places of all keys of a settings class and of the classes that may stand below it."""
    for owner in _shipped_kinds(table) if issubclass(table, Part) else [table]:
        for field in msgspec.structs.fields(owner):
            yield key_place(path, owner, field.name)
            for inner, step in _tables_in(field.type):
                yield from walk_keys(inner, f"{path}.{field.name}{step}".lstrip("."))


def _shipped_kinds(family: type[Part]) -> list[type[Part]]:
    """The kinds that come with Potluck; other tests may have declared their own."""
    return [kind for kind in part_kinds(family).values() if kind.__module__.startswith("potluck.")]


def _tables_in(wanted: Any) -> Iterator[tuple[type[msgspec.Struct], str]]:
    """The settings classes that a value may be or contain, each with the step to it from the key."""
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        yield wanted, ""
    step = ".*" if typing.get_origin(wanted) is tuple else ""
    for inner in typing.get_args(wanted):
        yield from ((table, step + below) for table, below in _tables_in(inner))

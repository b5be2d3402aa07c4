"""Describes the keys of job.toml and fleet.toml from the settings classes: as rows of the reference, as a JSON schema.

A key's meaning is the `doc` of its field; a field that overrides a base class's only to change its default inherits it.
The schema checks names, types and limits. It leaves out what depends on a recipe: a part's table without `kind` may
have the keys of any kind, and no key of a part is required.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from potluck import recipes
from potluck.fleet import LINKS, PRESETS, CoordinatorMachine, DeviceGroup
from potluck.job import Job, built_in_fleets
from potluck.model import zoo
from potluck.model.submodels.submodel_parts import FilterDropout
from potluck.settings import Part, Settings, encode_settings, part_kinds
from potluck.task import TaskSettings
from potluck.units import Quantity

__all__ = ["KeyInfo", "build_schema", "key_infos", "limits_of", "summary_line"]

_BY_NAME = {"type": "string", "pattern": "^[^:]+:.+$"}  # package.module:attribute, or data:key=value
_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string"}
_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


@dataclass(frozen=True)
class KeyInfo:
    """One key of a table."""

    name: str
    type: Any  # without its description
    meaning: str
    required: bool
    default: Any  # as it would be written in TOML; None: there is none


def key_infos(table: type[msgspec.Struct]) -> Iterator[KeyInfo]:
    """The keys of a settings class, in the order in which they are declared."""
    for field in msgspec.structs.fields(table):
        default = None if field.default is msgspec.NODEFAULT else encode_settings(field.default)
        if field.default_factory is not msgspec.NODEFAULT:
            default = encode_settings(field.default_factory())
        yield KeyInfo(field.name, _without_doc(field.type), _meaning(table, field.name), field.required, default)


def limits_of(wanted: Any) -> dict[str, float]:
    """The limits of a number by msgspec's names (`ge`, `gt`, `le`, `lt`)."""
    notes = getattr(wanted, "__metadata__", ())
    return {key: getattr(note, key) for note in notes for key in _LIMITS if getattr(note, key) is not None}


def build_schema(table: type[msgspec.Struct] = Job) -> dict[str, Any]:
    """The JSON schema (draft 7) of job.toml, or of fleet.toml with `Fleet`."""
    builder = _SchemaBuilder()
    top = builder.table_schema(table)
    top["required"] = [key.name for key in key_infos(table) if key.required]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "job.toml of Potluck" if table is Job else "fleet.toml of Potluck",
        **top,
        "definitions": builder.definitions,
    }


class _SchemaBuilder:
    """Collects a definition for each table and each family of parts."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def table_schema(self, table: type[msgspec.Struct], kind: str | None = None) -> dict[str, Any]:
        keys = {key.name: self._key_schema(table, key) for key in key_infos(table)}
        schema: dict[str, Any] = {"type": "object", "description": summary_line(table), "additionalProperties": False}
        if kind is None:
            return {**schema, "properties": keys}
        return {**schema, "properties": {"kind": {"const": kind}, **keys}, "required": ["kind"]}

    def _key_schema(self, table: type[msgspec.Struct], key: KeyInfo) -> dict[str, Any]:
        schema = self._type_schema(key.type)
        if choices := _written_choices(table, key.name):
            forms = schema.get("anyOf", [schema])
            schema = {"anyOf": [*choices, *(form for form in forms if form != {"type": "string"})]}
        described = {"description": key.meaning, **schema} if "$ref" not in schema else _describe_reference(schema, key)
        return (
            described if key.default is None or not _is_finite(key.default) else {**described, "default": key.default}
        )

    def _type_schema(self, wanted: Any) -> dict[str, Any]:
        wanted, limits = _without_doc(wanted), limits_of(wanted)
        plain = getattr(wanted, "__origin__", wanted) if limits else wanted
        origin, inner = typing.get_origin(plain), typing.get_args(plain)
        if origin in (typing.Union, types.UnionType):
            choices = [self._type_schema(choice) for choice in inner if choice is not types.NoneType]
            return choices[0] if len(choices) == 1 else {"anyOf": choices}
        if origin is typing.Annotated:
            return self._type_schema(inner[0])
        if origin is typing.Literal:
            return {"enum": list(inner)}
        if origin is tuple:
            return {"type": "array", "items": self._type_schema(inner[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self._type_schema(inner[1])}
        if plain in _PLAIN:
            return {"type": _PLAIN[plain], **{_LIMITS[key]: value for key, value in limits.items()}}
        if isinstance(plain, type) and issubclass(plain, Quantity):
            return _quantity_schema(plain)
        if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
            return {"$ref": f"#/definitions/{self._define(plain)}"}
        return {}

    def _define(self, table: type[msgspec.Struct]) -> str:
        name = table.__name__
        if name not in self.definitions:
            self.definitions[name] = {}  # a placeholder, in case the table contains itself
            self.definitions[name] = self._family_schema(table) if issubclass(table, Part) else self.table_schema(table)
        return name

    def _family_schema(self, family: type[Part]) -> dict[str, Any]:
        kinds = [self.table_schema(part, kind) for kind, part in part_kinds(family).items()]
        without_kind = {"type": "object", "properties": _keys_of_any(kinds), "additionalProperties": False}
        your_own = {"type": "object", "properties": {"kind": _BY_NAME}, "required": ["kind"]}
        by_name = {"enum": list(part_kinds(family))}
        return {"description": summary_line(family), "anyOf": [by_name, _BY_NAME, *kinds, without_kind, your_own]}


def _keys_of_any(kinds: list[dict[str, Any]]) -> dict[str, Any]:
    """Every key that some kind has; a key that differs between kinds may have any of its forms."""
    forms: dict[str, list[Any]] = {}
    for key, schema in ((key, schema) for kind in kinds for key, schema in kind["properties"].items()):
        form = {name: value for name, value in schema.items() if name != "default"}
        if key != "kind" and form not in forms.setdefault(key, []):
            forms[key].append(form)
    return {key: known[0] if len(known) == 1 else {"anyOf": known} for key, known in forms.items()}


def _written_choices(table: type[msgspec.Struct], key: str) -> list[dict[str, Any]]:
    """What a file may hold at this key beside the value itself: names that are looked up and files that are read."""
    names: Mapping[tuple[type, str], list[dict[str, Any]]] = {
        (Job, "recipe"): [{"enum": list(recipes.CATALOGUE)}],
        (Job, "fleet"): [{"enum": list(built_in_fleets())}, {"type": "string", "pattern": r"\.toml$"}],
        (TaskSettings, "model"): [{"enum": list(zoo.model_names())}, _BY_NAME],
        (TaskSettings, "costs"): [{"enum": list(zoo.model_names())}],
        (DeviceGroup, "preset"): [{"enum": ["", *PRESETS]}],
        (DeviceGroup, "link"): [{"enum": list(LINKS)}],
        (DeviceGroup, "profile"): [{"type": "string"}],
        (CoordinatorMachine, "link"): [{"enum": list(LINKS)}],
        (FilterDropout, "table"): [{"type": "string"}],
    }
    return names.get((table, key), [])


def _quantity_schema(quantity: type[Quantity]) -> dict[str, Any]:
    units = "|".join(re.escape(unit) for unit in quantity.units)
    pattern = rf"^\s*([0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?\s*({units})?|unlimited)\s*$"
    return {"anyOf": [{"type": "string", "pattern": pattern}, {"type": "number", "minimum": 0}]}


def _describe_reference(schema: dict[str, Any], key: KeyInfo) -> dict[str, Any]:
    return {"description": key.meaning, "allOf": [schema]}  # draft 7 ignores what stands beside $ref


def _meaning(table: type, key: str) -> str:
    """The key's description, in this class or the nearest base that has one."""
    for owner in table.__mro__:
        fields = msgspec.structs.fields(owner) if issubclass(owner, Settings) else ()
        for field in (field for field in fields if field.name == key):
            for note in getattr(field.type, "__metadata__", ()):
                if note.description:
                    return str(note.description)
    return ""


def _without_doc(wanted: Any) -> Any:
    """The type with its limits, if it has any, and without a description."""
    notes = getattr(wanted, "__metadata__", ())
    return wanted if not notes or limits_of(wanted) else wanted.__origin__


def summary_line(table: type) -> str:
    """The first line of a settings class's docstring."""
    return (table.__doc__ or "").strip().split("\n")[0]


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)

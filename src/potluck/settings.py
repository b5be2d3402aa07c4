"""Decodes plain tables into frozen settings; errors name the key by its path.

A settings class declares its keys once, with types, defaults and checks. A *part* is a settings class that comes in
several kinds (`barrier = "all"`, `barrier = {kind = "quorum", share = 0.8}`). A part may also be named
as `package.module:Class`, so a user's own part needs no registration.
"""

from __future__ import annotations

import difflib
import importlib
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from potluck.errors import SettingError
from potluck.units import Quantity
from potluck.user_code import describe_user_error

__all__ = [
    "Part",
    "Settings",
    "apply_override",
    "check_given_keys",
    "decode_settings",
    "doc",
    "encode_settings",
    "find_unused_keys",
    "kind_of",
    "load_object",
    "merge_tables",
    "part_kinds",
    "spelling_hint",
]

T = TypeVar("T")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen table of settings; `__post_init__` checks what concerns several keys and raises ValueError."""

    def unused_keys(self) -> Mapping[str, str]:
        """The keys that have no effect beside the others, each with when, as in "while `every` is 0".

        A key of a table inside this one is named by its path, as in `merge.power`. A recipe or a default may set them.
        What a user sets is refused (`check_given_keys`), and a saved job does not mention them.
        """
        return {}


class Part(Settings, frozen=True, kw_only=True, tag_field="kind"):
    """A settings class that comes in several kinds: subclasses, each with its name as `tag=`."""


def doc(meaning: str) -> msgspec.Meta:
    """What a key means, in one sentence: `lr: Annotated[float, doc("Learning rate.")] = 0.1`.

    The reference (docs/reference) and the JSON schema of job.toml are generated from these.
    """
    return msgspec.Meta(description=meaning)


def decode_settings(raw: object, wanted: type[T], path: str = "") -> T:
    """Decode plain data into a `wanted`; SettingError names the first wrong key."""
    return typing.cast(T, _decode_value(raw, wanted, path))


def encode_settings(settings: object, leave_out: Collection[str] = ()) -> Any:
    """Plain data that `decode_settings` turns back into an equal object; None values are omitted.

    Keys to `leave_out` are given by their paths; they come back with their defaults.
    """
    if isinstance(settings, msgspec.Struct):
        table = {
            field.name: encode_settings(getattr(settings, field.name), _paths_below(field.name, leave_out))
            for field in msgspec.structs.fields(settings)
            if field.name not in leave_out
        }
        kind = {"kind": _kind_name(type(settings))} if isinstance(settings, Part) else {}
        return {**kind, **{key: value for key, value in table.items() if value is not None}}
    if isinstance(settings, Mapping):
        return {str(key): encode_settings(value) for key, value in settings.items() if value is not None}
    if isinstance(settings, list | tuple):
        return [encode_settings(value, _paths_below(f"[{index}]", leave_out)) for index, value in enumerate(settings)]
    return str(settings) if isinstance(settings, Quantity | str) else settings


def find_unused_keys(settings: object, path: str = "") -> dict[str, str]:
    """The paths of all keys without effect, in these settings and in the tables inside them, each with when."""
    if isinstance(settings, tuple):
        inner = {f"{path}[{index}]": value for index, value in enumerate(settings)}
    elif isinstance(settings, Settings):
        inner = {_join_path(path, key): getattr(settings, key) for key in settings.__struct_fields__}
    else:
        return {}
    found = {}
    for where, value in inner.items():
        found.update(find_unused_keys(value, where))
    own = settings.unused_keys() if isinstance(settings, Settings) else {}
    return {**found, **{_join_path(path, key): when for key, when in own.items()}}


def check_given_keys(settings: Settings, given: object) -> None:
    """Refuse the keys of `given` that have no effect in `settings`, which was decoded from it and from a recipe.

    Of settings that are given as an object, those keys count whose value is not the default.
    """
    unused = find_unused_keys(settings)
    for path, value in _iter_given_keys(given):
        if path in unused:
            inner = ", ".join(_given_keys(value))
            raise SettingError(path, f"has no effect {unused[path]}; remove it{f' ({inner})' if inner else ''}")


def _iter_given_keys(given: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every key with its path and value, outer ones first."""
    for key, value in _given_keys(given).items():
        where = _join_path(path, key)
        yield where, value
        yield from _iter_given_keys(value, where)


def _given_keys(given: object) -> Mapping[str, object]:
    """The keys of a table or a list, or those of an object that differ from their defaults."""
    if isinstance(given, Mapping):
        return {key: value for key, value in given.items() if key != "kind"}
    if isinstance(given, list | tuple):
        return {f"[{index}]": value for index, value in enumerate(given)}
    if not isinstance(given, Settings):
        return {}
    fields = {field.name: field for field in msgspec.structs.fields(given)}
    values = {name: getattr(given, name) for name in fields}
    return {name: value for name, value in values.items() if value != _default_of(fields[name])}


def _paths_below(key: str, paths: Collection[str]) -> list[str]:
    """Those of the paths that lead into this key, from there on."""
    below = (path.removeprefix(key) for path in paths if path.startswith((f"{key}.", f"{key}[")))
    return [path.removeprefix(".") for path in below]


def _default_of(field: msgspec.structs.FieldInfo) -> object:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def part_kinds(family: type[Part]) -> dict[str, type[Part]]:
    """The kinds of a part by name, in the order in which they were defined."""
    return {str(kind.__struct_config__.tag): kind for kind in _iter_subclasses(family) if not _is_abstract(kind)}


def kind_of(part: Part) -> str:
    """The kind of a part, as a file names it."""
    return _kind_name(type(part))


def load_object(name: str, path: str) -> Any:
    """Import what `package.module:attribute` names. Code is never sent, so it must be installed on every device."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise SettingError(path, f"{name!r} does not have the form 'package.module:name'")
    try:
        target: Any = importlib.import_module(module)
    except Exception as error:  # the user's module may raise anything
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise SettingError(path, f"cannot import {module!r} ({error}); install it on every device") from error
        raise SettingError(path, f"cannot import {module!r}: {describe_user_error(error)}") from error
    for step in attribute.split("."):
        if not hasattr(target, step):
            raise SettingError(path, f"module {module!r} has no {attribute!r}")
        target = getattr(target, step)
    return target


def merge_tables(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`base` overridden by `overrides`, table by table; a part of another kind replaces the whole part."""
    merged = dict(base)
    for key, value in overrides.items():
        old = merged.get(key)
        if isinstance(old, str) and isinstance(value, Mapping):
            old = {"kind": old}  # a part given by its kind alone
        merged[key] = merge_tables(old, value) if old is not None and _same_table(old, value) else value
    return merged


def apply_override(raw: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """`raw` with one dotted key set, as in `rounds.batch=32`; the value is parsed as TOML, else taken as text."""
    key, equals, value = assignment.partition("=")
    steps = [step.strip() for step in key.split(".")]
    if not equals or not all(steps):
        raise SettingError("--set", f"{assignment!r} does not have the form a.b=value")
    nested: Any = _toml_value(value.strip())
    for step in reversed(steps):
        nested = {step: nested}
    return merge_tables(raw, nested)


def _decode_value(raw: object, wanted: Any, path: str) -> Any:
    wanted = _without_description(wanted)
    origin = typing.get_origin(wanted)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(raw, typing.get_args(wanted), path)
    if origin is tuple:
        return _decode_tuple(raw, typing.get_args(wanted)[0], path)
    if origin is dict:
        table = _require_table(raw, path)
        inner = typing.get_args(wanted)[1]
        return {str(key): _decode_value(value, inner, _join_path(path, str(key))) for key, value in table.items()}
    if isinstance(wanted, type) and issubclass(wanted, Part):
        return _decode_part(raw, wanted, path)
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return _decode_struct(_require_table(raw, path), wanted, path)
    return _decode_leaf(raw, wanted, path)


def _without_description(wanted: Any) -> Any:
    """The type itself where the only annotation is a description; one with limits is left to msgspec."""
    if typing.get_origin(wanted) is not typing.Annotated:
        return wanted
    notes = [note for note in wanted.__metadata__ if note != msgspec.Meta(description=note.description)]
    return wanted if notes else wanted.__origin__


def _decode_union(raw: object, choices: tuple[Any, ...], path: str) -> Any:
    if raw is None and types.NoneType in choices:
        return None
    choices = tuple(choice for choice in choices if choice is not types.NoneType)
    tables = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, msgspec.Struct)]
    if isinstance(raw, Mapping) and tables:
        return _decode_value(raw, tables[0], path)
    plain = [choice for choice in choices if choice not in tables] or tables
    for choice in plain[:-1]:
        try:
            return _decode_value(raw, choice, path)
        except SettingError:
            continue
    return _decode_value(raw, plain[-1], path)


def _decode_tuple(raw: object, inner: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(raw, list | tuple):
        raise SettingError(path, f"expected a list, got {raw!r}")
    return tuple(_decode_value(item, inner, f"{path}[{index}]") for index, item in enumerate(raw))


def _decode_part(raw: object, family: type[Part], path: str) -> Part:
    if isinstance(raw, family):
        return raw
    table = {"kind": raw} if isinstance(raw, str) else dict(_require_table(raw, path))
    known = part_kinds(family)
    name = table.pop("kind", None)
    if not isinstance(name, str):
        raise SettingError(_join_path(path, "kind"), f"set the kind to one of {', '.join(known)}")
    kind = known.get(name)
    if kind is None and ":" in name:
        kind = load_object(name, path)
        if not (isinstance(kind, type) and issubclass(kind, family)):
            raise SettingError(path, f"{name!r} is not a {family.__name__}")
    if kind is None:
        raise SettingError(path, f"{name!r} is not known; choose from {', '.join(known)}{spelling_hint(name, known)}")
    return typing.cast(Part, _decode_struct(table, kind, path))


def _decode_struct(table: Mapping[str, object], wanted: type[msgspec.Struct], path: str) -> Any:
    fields = {field.name: field for field in msgspec.structs.fields(wanted)}
    for key in table:
        if key not in fields:
            raise SettingError(_join_path(path, key), f"unknown key; {_known_keys(wanted, fields, key)}")
    values = {
        key: _decode_value(_with_kind(value, fields[key].default), fields[key].type, _join_path(path, key))
        for key, value in table.items()
    }
    for field in fields.values():
        if field.required and field.name not in values:
            raise SettingError(_join_path(path, field.name), "this key is missing")
    try:
        return wanted(**values)
    except SettingError as error:
        raise SettingError(_join_path(path, error.path), error.problem) from None
    except ValueError as error:
        raise SettingError(path, str(error)) from None


def _known_keys(wanted: type[msgspec.Struct], fields: Mapping[str, object], key: str) -> str:
    if fields:
        return f"known keys: {', '.join(fields)}{spelling_hint(key, fields)}"
    return f"{wanted.__struct_config__.tag!r} has no keys; set `kind` to choose another one"


def _with_kind(raw: object, default: object) -> object:
    """A part's table without a kind has the kind of the default."""
    if isinstance(default, Part) and isinstance(raw, Mapping) and "kind" not in raw:
        return {"kind": default.__struct_config__.tag, **raw}
    return raw


def _decode_leaf(raw: object, wanted: Any, path: str) -> Any:
    if isinstance(wanted, type) and issubclass(wanted, Quantity):
        return _decode_quantity(raw, wanted, path)
    if typing.get_origin(wanted) is typing.Literal and raw not in typing.get_args(wanted):
        choices = ", ".join(map(str, typing.get_args(wanted)))
        raise SettingError(path, f"invalid enum value {raw!r}; choose from {choices}")
    try:
        return msgspec.convert(raw, wanted)
    except msgspec.ValidationError as error:
        raise SettingError(path, _plain_message(str(error), raw)) from None


def _decode_quantity(raw: object, wanted: type[Quantity], path: str) -> Quantity:
    try:
        return wanted.parse(raw)
    except ValueError as error:
        raise SettingError(path, str(error)) from None


def _plain_message(problem: str, raw: object) -> str:
    """msgspec's message without its own path, and with the value it was given."""
    problem = problem.split(" - at `$")[0]
    problem += f" ({raw!r})" if ", got " in problem else f", got {raw!r}"
    return problem[:1].lower() + problem[1:]


def _require_table(raw: object, path: str) -> Mapping[str, object]:
    if not isinstance(raw, Mapping):
        raise SettingError(path, f"expected a table, got {raw!r}")
    return raw


def _iter_subclasses(family: type[Part]) -> Iterator[type[Part]]:
    for kind in family.__subclasses__():
        yield kind
        yield from _iter_subclasses(kind)


def _kind_name(kind: type[Part]) -> str:
    """The tag of our own parts, the import path of a user's, so that a saved job can be loaded again."""
    if kind.__module__.split(".")[0] == "potluck":
        return str(kind.__struct_config__.tag)
    return f"{kind.__module__}:{kind.__qualname__}"


def _is_abstract(kind: type[Part]) -> bool:
    return kind.__struct_config__.tag in (None, kind.__name__)


def _same_table(old: object, new: object) -> bool:
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return False
    return "kind" not in new or new["kind"] == old.get("kind")


def _join_path(path: str, key: str) -> str:
    return f"{path}.{key}" if path and key and not key.startswith("[") else path + key


def spelling_hint(name: str, known: Iterable[str]) -> str:
    """A suggestion to append to an error; empty if no known name is similar."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _toml_value(text: str) -> object:
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text

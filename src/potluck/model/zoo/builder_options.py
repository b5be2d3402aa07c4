"""Options of a builder, checked against its signature before anything is built.

A builder's positional parameters say which network it is and belong to the catalogue; its keyword-only
parameters are the user's, and their annotations are the check.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import msgspec
from torch import nn

from potluck.errors import ModelError

__all__ = ["Builder", "Count", "Share", "check_options", "did_you_mean", "known_options"]

Builder = functools.partial[nn.Module]
Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]


def known_options(builder: Builder) -> tuple[str, ...]:
    """The names a user may set, `classes` and `channels` first."""
    parameters = inspect.signature(builder).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)


def check_options(name: str, builder: Builder, given: Mapping[str, object]) -> dict[str, Any]:
    """`given` in the types that the builder asks for; ModelError names the first option that is wrong."""
    known = known_options(builder)
    wanted = typing.get_type_hints(_builder_function(builder), include_extras=True)
    for key in given:
        if key not in known:
            raise ModelError(
                f"model {name!r} has no option {key!r}; it has {', '.join(known)}{did_you_mean(key, known)}"
            )
    return {key: _convert_option(name, key, value, wanted[key]) for key, value in given.items()}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint for the end of an error, empty if nothing comes close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _builder_function(builder: Builder) -> Callable[..., nn.Module]:
    return builder.func


def _convert_option(name: str, key: str, value: object, wanted: Any) -> Any:
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        problem = str(error).split(" - at `$")[0]
        raise ModelError(f"model {name!r}, option {key!r}: {problem[:1].lower()}{problem[1:]}, got {value!r}") from None

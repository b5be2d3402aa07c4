"""Checks a builder's options against its signature before anything is built.

A builder's positional parameters select the network and are set by the catalogue; its keyword-only
parameters are the user's options, checked by their annotations.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from torch import nn

from potluck.errors import ModelError
from potluck.settings import spelling_hint

__all__ = ["Builder", "Count", "Fraction", "check_options", "known_options"]

Builder = functools.partial[nn.Module]
Count = Annotated[int, msgspec.Meta(ge=1)]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]


def known_options(builder: Builder) -> tuple[str, ...]:
    """The options a user may set, `classes` and `channels` first."""
    parameters = inspect.signature(builder).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)


def check_options(name: str, builder: Builder, given: Mapping[str, object]) -> dict[str, Any]:
    """`given` converted to the builder's types; ModelError names the first wrong option."""
    known = known_options(builder)
    wanted = typing.get_type_hints(_builder_function(builder), include_extras=True)
    for key in given:
        if key not in known:
            raise ModelError(
                f"model {name!r} has no option {key!r}; it has {', '.join(known)}{spelling_hint(key, known)}"
            )
    return {key: _convert_option(name, key, value, wanted[key]) for key, value in given.items()}


def _builder_function(builder: Builder) -> Callable[..., nn.Module]:
    return builder.func


def _convert_option(name: str, key: str, value: object, wanted: Any) -> Any:
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        problem = str(error).split(" - at `$")[0]
        raise ModelError(f"model {name!r}, option {key!r}: {problem[:1].lower()}{problem[1:]}, got {value!r}") from None

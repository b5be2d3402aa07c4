from __future__ import annotations

import importlib
import inspect
import re

import pytest

from potluck import errors
from potluck.errors import DataError, ModelError, PotluckError, PotluckWarning, RunError, SettingError, UserError


def _drawn() -> dict[str, str]:
    """Each class of the drawing at the top of the module, with its parent."""
    parents: list[str] = []
    tree = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│├└─ ]*)(\w+)", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        parents = [*parents[:depth], match[2]]
        tree[match[2]] = parents[depth - 1] if depth else ""
    return tree


def test_the_exception_tree_matches_its_drawing() -> None:
    drawn = _drawn()
    assert drawn.pop("Exception") == ""
    assert set(drawn) == set(errors.__all__)
    for name, parent in drawn.items():
        bases = [base.__name__ for base in getattr(errors, name).__mro__[1:]]
        assert parent in bases, f"{name} is drawn below {parent}"


def test_everything_the_tree_cites_exists() -> None:
    cited = re.findall(r"`(potluck[\w.]*)\.(\w+)`", errors.__doc__ or "")
    assert cited
    assert all(hasattr(importlib.import_module(module), name) for module, name in cited)


def test_everything_defined_here_is_public() -> None:
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert defined == set(errors.__all__)
    assert errors.__all__ == sorted(errors.__all__)


@pytest.mark.parametrize("kind", [SettingError, ModelError, DataError, RunError])
def test_bad_input_is_a_value_error(kind: type[UserError]) -> None:
    assert issubclass(kind, UserError)
    assert issubclass(kind, ValueError)
    assert issubclass(kind, PotluckError)


def test_a_warning_is_not_an_error() -> None:
    assert issubclass(PotluckWarning, UserWarning)
    assert not issubclass(PotluckWarning, PotluckError)


def test_a_setting_error_names_its_path() -> None:
    error = SettingError("fleet.devices[2].link.up", "must be above 0")
    assert str(error) == "fleet.devices[2].link.up: must be above 0"
    assert (error.path, error.problem) == ("fleet.devices[2].link.up", "must be above 0")
    assert str(SettingError("", "no such file")) == "no such file"

"""Recipes that other distributions register by entry points."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import potluck
from potluck import recipes
from potluck.errors import PotluckWarning, SettingError
from potluck.job import dump_job, make

JOB: dict[str, Any] = {
    "task": {"model": "mlp", "data": "synthetic", "options": {"hidden": [8]}},
    "fleet": {"devices": [{"preset": "pi4", "count": 2}]},
    "stop": {"rounds": 2},
}
MODULE = '''
from potluck.model.local_training import LocalSgd
from potluck.recipes import Recipe

class Patient(LocalSgd, frozen=True, kw_only=True, tag="patient"):
    pass

plain = {"rounds": {"local": {"kind": "sgd", "lr": 0.25}}}
described = Recipe("very patient", "Nobody 2025", {"rounds": {"local": {"kind": "MODULE:Patient", "lr": 0.125}}})

def made():
    """Made by a function.

    With more to say."""
    return {"rounds": {"barrier": "quorum"}}

def fails():
    raise OSError("no disk\\nat all")

number = 3
'''

Install = Callable[..., str]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution with these entry points (name to attribute) and return the name of its module."""
    modules: list[str] = []

    def add_distribution(name: str = "potluck-extra", **entry_points: str) -> str:
        site, module = tmp_path / name, f"extra_{len(modules)}"
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"{key} = {attribute.format(module)}" for key, attribute in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{recipes.ENTRY_POINT_GROUP}]", *lines, ""]))
        (site / f"{module}.py").write_text(MODULE.replace("MODULE", module))
        monkeypatch.syspath_prepend(str(site))
        modules.append(module)
        return module

    yield add_distribution
    for module in modules:
        sys.modules.pop(module, None)


def test_a_registered_recipe_is_listed_with_its_distribution(install: Install) -> None:
    module = install(plain="{}:plain", described="{}:described", made="{}:made")
    known = recipes.known_recipes()
    assert known["fedavg"].origin == "built in"
    assert known["plain"] == recipes.Recipe(
        f"registered as {module}:plain", "", {"rounds": {"local": {"kind": "sgd", "lr": 0.25}}},
        "potluck-extra",
    )  # fmt: skip
    assert known["described"][:2] == ("very patient", "Nobody 2025")
    assert known["described"].origin == "potluck-extra"
    assert known["made"].summary == "Made by a function"


def test_a_registered_recipe_runs(install: Install) -> None:
    install(described="{}:described")
    result = potluck.simulate({**JOB, "recipe": "described"}, threads=0)
    assert (result.status, result.summary["recipe"]) == ("done", "described")


def test_a_resolved_job_is_read_where_the_recipe_is_not_registered(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device that has the distribution's code but not its metadata."""
    module = install(described="{}:described")
    job = make({**JOB, "recipe": "described"}, ["rounds.local.momentum=0.5"])
    text = dump_job(job)
    assert f"{module}:Patient" in text
    monkeypatch.setattr("potluck.recipes.metadata.entry_points", lambda **_: ())
    with pytest.raises(SettingError, match="'described' is not known"):
        make(tomllib.loads(text))
    assert make(tomllib.loads(text), resolved=True) == job


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_module:recipe", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("{}:nothing", "AttributeError"),
        ("{}:fails", "OSError: no disk at all"),
        ("{}:number", "expected a mapping of settings, got int"),
    ],
)
def test_a_broken_entry_point_is_a_one_line_warning(install: Install, value: str, message: str) -> None:
    install(broken=value, made="{}:made")
    with pytest.warns(PotluckWarning) as caught:
        known = recipes.known_recipes()
    assert "broken" not in known
    assert "made" in known
    [text] = [str(warning.message) for warning in caught]
    assert text.startswith("recipe 'broken' of potluck-extra (")
    assert message in text
    assert "\n" not in text
    with pytest.raises(SettingError, match="recipe: 'broken' of potluck-extra"):
        make({**JOB, "recipe": "broken"})


def test_a_broken_entry_point_does_not_matter_to_other_recipes(install: Install) -> None:
    install(broken="no_such_module:recipe", made="{}:made")
    assert make({**JOB, "recipe": "made"}).recipe == "made"
    assert make({**JOB, "recipe": "fedbuff"}).recipe == "fedbuff"


def test_the_name_of_a_built_in_recipe_is_refused(install: Install) -> None:
    install(fedavg="{}:plain")
    with pytest.warns(PotluckWarning, match="recipe 'fedavg' of potluck-extra is ignored: a built-in recipe has this"):
        assert recipes.find_recipe("fedavg").origin == "built in"


def test_a_name_that_is_registered_twice_is_refused(install: Install) -> None:
    install("first-one", made="{}:made")
    install("second-one", made="{}:plain")
    with pytest.warns(PotluckWarning, match="is ignored: .* registers this name too"):
        recipes.find_recipe("made")


def test_a_registered_name_is_suggested(install: Install) -> None:
    install(described="{}:described")
    with pytest.raises(SettingError, match="did you mean 'described'"):
        recipes.find_recipe("discribed")

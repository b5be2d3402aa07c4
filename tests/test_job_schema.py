"""The JSON schema accepts the shipped jobs and refuses wrong keys, types and limits."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from potluck.fleet import Fleet
from potluck.job_schema import build_schema
from tests.cli.calling import ROOT, Shell
from tests.frozen.jobs import JOBS

JOB = jsonschema.Draft7Validator(build_schema())
FLEET = jsonschema.Draft7Validator(build_schema(Fleet))
STARTER = ROOT / "src" / "potluck" / "cli" / "starter"
FILES = [*sorted((ROOT / "examples").rglob("*.toml")), *sorted(STARTER.glob("*.toml"))]
FILES += sorted((ROOT / "src" / "potluck" / "fleet" / "fleets").glob("*.toml"))
BASE: dict[str, Any] = {"task": {"model": "mlp", "data": "digits"}, "fleet": "pi-shelf", "stop": {"rounds": 1}}


@pytest.fixture
def potluck(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_the_schemas_are_schemas() -> None:
    jsonschema.Draft7Validator.check_schema(JOB.schema)
    jsonschema.Draft7Validator.check_schema(FLEET.schema)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_shipped_file_is_valid(path: Path) -> None:
    is_fleet = path.name == "fleet.toml" or path.parent.name == "fleets"
    (FLEET if is_fleet else JOB).validate(tomllib.loads(path.read_text(encoding="utf-8")))


def test_every_frozen_job_is_valid() -> None:
    for name, job in JOBS.items():
        errors = [error.message for error in JOB.iter_errors(json.loads(json.dumps(job)))]
        assert not errors, name


@pytest.mark.parametrize(
    "wrong",
    [
        {"sed": 1},
        {"seed": -1},
        {"seed": "one"},
        {"recipe": "fedavgg"},
        {"fleet": "no-such-fleet"},
        {"stop": {"rounds": 0}},
        {"stop": {"time": "3 kg"}},
        {"task": {"model": "mlp"}, "stop": {"round": 1}},
        {"rounds": {"barrier": "qourum"}},
        {"rounds": {"barrier": {"kind": "quorum", "shares": 0.5}}},
        {"rounds": {"barrier": {"kind": "quorum", "share": 2}}},
        {"rounds": {"barrier": {"kind": "all", "share": 0.5}}},
        {"rounds": {"local": {"epoch": 2}}},
        {"fleet": {"devices": [{"preset": "pi9"}]}},
    ],
)
def test_invalid_jobs_fail(wrong: dict[str, Any]) -> None:
    assert JOB.is_valid(BASE)
    assert not JOB.is_valid({**BASE, **wrong})


@pytest.mark.parametrize(
    "right",
    [
        {"stop": {"time": "3 min"}},
        {"stop": {"time": 90, "bytes": "1.5 GB"}},
        {"rounds": {"barrier": "mypackage.barriers:Patient"}},
        {"rounds": {"barrier": {"kind": "mypackage.barriers:Patient", "minutes": 3}}},
        {"rounds": {"local": {"lr": 0.1}}},
        {"task": {"model": "mypackage:net", "data": "synthetic:classes=4"}},
        {"rounds": {"submodel": {"kind": "filter-dropout", "table": "table.json"}}},
        {"fleet": {"devices": [{"name": "pi", "profile": "pi.json"}]}},
    ],
)
def test_valid_jobs_pass(right: dict[str, Any]) -> None:
    JOB.validate({**BASE, **right})


def test_a_missing_table_fails() -> None:
    assert not JOB.is_valid({key: value for key, value in BASE.items() if key != "task"})


def test_the_command_prints_them(potluck: Shell) -> None:
    # Built now: tests that ran since the import may have registered parts of their own.
    assert potluck("schema").json == build_schema()
    assert potluck("schema", "fleet").json == build_schema(Fleet)


def test_a_new_job_names_its_schema(potluck: Shell, tmp_path: Path) -> None:
    assert potluck("new", tmp_path).code == 0
    first = (tmp_path / "job.toml").read_text().splitlines()[0]
    assert first == "#:schema ./job.schema.json"
    assert json.loads((tmp_path / "job.schema.json").read_text()) == build_schema()

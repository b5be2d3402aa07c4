"""The reference lists every key, says what each means, and is what the settings classes give today."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

import potluck.explore.settings  # noqa: F401, declares its table
from potluck.job_schema import key_infos
from potluck.settings import Part, Settings, part_kinds
from tests.cli.calling import ROOT

REFERENCE = ROOT / "docs" / "reference"
# built in, or files that `potluck explore` and `potluck profile` write
NOT_IN_FILES = {"DevicePreset", "ParetoEntry", "ParetoTable", "ComputeProfile", "ProfiledLayer"}


def subclasses(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for table in base.__subclasses__():
        yield table
        yield from subclasses(table)


TABLES = sorted(
    {table for table in subclasses(Settings) if table.__module__.startswith("potluck.")},
    key=lambda table: table.__name__,
)


def test_the_pages_are_current() -> None:
    words = [sys.executable, str(ROOT / "scripts" / "reference.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_every_table_and_key_says_what_it_means(table: type[msgspec.Struct]) -> None:
    if not table.__name__.startswith("_") and not table.__name__.endswith("PublishedSource"):
        assert (table.__doc__ or "").strip()
    for key in key_infos(table):
        assert table.__name__ in NOT_IN_FILES or key.meaning.endswith("."), f"{table.__name__}.{key.name}: no doc(...)"


def test_every_key_is_listed() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md"))
    for table in TABLES:
        if table.__name__ not in NOT_IN_FILES:
            for key in key_infos(table):
                assert f"| `{key.name}` |" in pages, f"{table.__name__}.{key.name}"


def test_every_kind_is_listed() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md"))
    families = [table for table in TABLES if issubclass(table, Part) and table.__base__ is Part]
    assert len(families) > 20
    for family in families:
        for kind, part in part_kinds(family).items():
            assert f"**`{kind}`**" in pages or not part.__module__.startswith("potluck."), kind

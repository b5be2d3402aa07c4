"""`potluck doctor`: what is here, what is missing, and what to do about it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from potluck.cli.figures import amount
from potluck.cli.options import AsJson, Data

__all__ = ["Finding", "doctor"]

GOOD, MISSING, BAD = "ok", "missing", "bad"  # only what is bad keeps Potluck from working
_MARKS = {GOOD: "✓", MISSING: "·", BAD: "✗"}
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*(?:;.*extra\s*==\s*['\"]([^'\"]+)['\"])?")

Runs = Annotated[Path, typer.Option("--runs", help="The folder that shall hold the runs.")]


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    state: str
    found: str


def doctor(runs: Runs = Path("runs"), data: Data = None, as_json: AsJson = False) -> None:
    """Say whether Potluck can work here, and what is missing."""
    findings = [*_python(), *_packages(), *_runs(runs), *_data(data), *_room(runs)]
    usable = not any(finding.state == BAD for finding in findings)
    if as_json:
        typer.echo(json.dumps({"usable": usable, "findings": [finding._asdict() for finding in findings]}))
    else:
        width = max(len(finding.what) for finding in findings)
        for what, state, found in findings:
            typer.echo(f"{_MARKS[state]} {what:<{width}}  {found}")
        typer.echo("ready: try `potluck demo`" if usable else "not ready: see what is marked ✗")
    raise typer.Exit(0 if usable else 1)


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    enough = sys.version_info >= (3, 11)
    yield Finding("python", GOOD if enough else BAD, version if enough else f"{version}; 3.11 or newer is needed")
    try:
        import torch

        torch.ones(2, 2) @ torch.ones(2, 2)
    except (ImportError, OSError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        yield Finding("torch", BAD, f"does not work ({reason}): pip install torch, see pytorch.org for your machine")
        return
    threads = f"{torch.get_num_threads()} threads on {os.cpu_count()} cores"
    yield Finding("torch", GOOD, f"{torch.__version__}, {threads}")


def _packages() -> Iterator[Finding]:
    """What the base install and each extra ask for, by the package's own metadata."""
    from importlib import metadata

    try:
        needs = metadata.requires("potluck") or []
    except metadata.PackageNotFoundError:
        yield Finding("potluck", BAD, "is not installed: pip install potluck")
        return
    wanted = defaultdict(list)
    for need in needs:
        if (match := _REQUIREMENT.match(need)) is not None and match[1] != "potluck":
            wanted[match[2] or ""].append(match[1])
    for extra, names in wanted.items():
        if extra != "dev":
            yield _extra(extra, names) if extra else _base(names)


def _base(names: list[str]) -> Finding:
    missing = [name for name in names if not _version(name)]
    if missing:
        return Finding("packages", BAD, f"missing {', '.join(missing)}: pip install {' '.join(missing)}")
    return Finding("packages", GOOD, ", ".join(f"{name} {_version(name)}" for name in names if name != "torch"))


def _extra(extra: str, names: list[str]) -> Finding:
    missing = [name for name in names if not _version(name)]
    if missing:
        return Finding(f"extra {extra}", MISSING, f"without {', '.join(missing)}: pip install 'potluck[{extra}]'")
    return Finding(f"extra {extra}", GOOD, ", ".join(f"{name} {_version(name)}" for name in names))


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _runs(folder: Path) -> Iterator[Finding]:
    there = _existing(folder)
    if there.is_dir() and os.access(there, os.W_OK):
        yield Finding("runs", GOOD, f"{folder.absolute()} can be written")
    else:
        yield Finding("runs", BAD, f"{there} cannot be written; go elsewhere or use --out")


def _data(root: Path | None) -> Iterator[Finding]:
    try:
        from potluck.data import info, names
        from potluck.data.places import roots
    except (ImportError, OSError) as error:
        yield Finding("data", BAD, str(error))
        return
    places = ", ".join(map(str, roots(root)))
    yield Finding("data", GOOD, f"looked for in {places}")
    for name in names():
        known = info(name, root)
        if known.place is not None:
            yield Finding(f"data {name}", GOOD, known.place)
        elif known.train:
            yield Finding(f"data {name}", MISSING, f"see: potluck data info {name}")


def _room(folder: Path) -> Iterator[Finding]:
    memory = _free_memory()
    if memory is not None:
        yield Finding("memory", GOOD, f"{amount(memory)} free")
    yield Finding("disk", GOOD, f"{amount(shutil.disk_usage(_existing(folder)).free)} free")


def _free_memory() -> int | None:
    """What the system would give without swapping; None where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    free = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(free[0]) * 1024 if free else None


def _existing(folder: Path) -> Path:
    return next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())

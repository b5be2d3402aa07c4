"""`potluck doctor`: what is installed, what is missing, and what to do about it."""

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

from potluck.cli.command_options import AsJson, Data
from potluck.cli.number_format import format_bytes

__all__ = ["DoctorCheck", "doctor_command"]

GOOD, MISSING, BAD = "ok", "missing", "bad"  # only BAD keeps Potluck from working
_MARKS = {GOOD: "✓", MISSING: "·", BAD: "✗"}
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*(?:;.*extra\s*==\s*['\"]([^'\"]+)['\"])?")

Runs = Annotated[Path, typer.Option("--runs", help="The folder in which runs are kept.")]


class DoctorCheck(NamedTuple):
    """The result of one check."""

    what: str
    state: str
    detail: str


def doctor_command(runs: Runs = Path("runs"), data: Data = None, as_json: AsJson = False) -> None:
    """Check whether Potluck works on this machine, and what is missing."""
    findings = [
        *_check_python(),
        *_check_packages(),
        *_check_runs_folder(runs),
        *_check_datasets(data),
        *_check_free_space(runs),
    ]
    usable = not any(finding.state == BAD for finding in findings)
    if as_json:
        typer.echo(json.dumps({"usable": usable, "findings": [_as_json(check) for check in findings]}))
    else:
        width = max(len(finding.what) for finding in findings)
        for what, state, detail in findings:
            typer.echo(f"{_MARKS[state]} {what:<{width}}  {detail}")
        typer.echo("ready: try `potluck demo`" if usable else "not ready: fix what is marked ✗")
    raise typer.Exit(0 if usable else 1)


def _as_json(check: DoctorCheck) -> dict[str, str]:
    return {"what": check.what, "state": check.state, "found": check.detail}


def _check_python() -> Iterator[DoctorCheck]:
    version = ".".join(map(str, sys.version_info[:3]))
    enough = sys.version_info >= (3, 11)
    yield DoctorCheck("python", GOOD if enough else BAD, version if enough else f"{version}; 3.11 or newer is needed")
    try:
        import torch

        torch.ones(2, 2) @ torch.ones(2, 2)
    except (ImportError, OSError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        yield DoctorCheck(
            "torch", BAD, f"does not work ({reason}): pip install torch, see pytorch.org for your machine"
        )
        return
    threads = f"{torch.get_num_threads()} threads on {os.cpu_count()} cores"
    yield DoctorCheck("torch", GOOD, f"{torch.__version__}, {threads}")


def _check_packages() -> Iterator[DoctorCheck]:
    """What the base install and each extra require, according to the package's metadata."""
    from importlib import metadata

    try:
        needs = metadata.requires("potluck") or []
    except metadata.PackageNotFoundError:
        yield DoctorCheck("potluck", BAD, "is not installed: pip install potluck")
        return
    wanted = defaultdict(list)
    for need in needs:
        if (match := _REQUIREMENT.match(need)) is not None and match[1] != "potluck":
            wanted[match[2] or ""].append(match[1])
    for extra, names in wanted.items():
        if extra != "dev":
            yield _check_extra(extra, names) if extra else _check_base_install(names)


def _check_base_install(names: list[str]) -> DoctorCheck:
    missing = [name for name in names if not _installed_version(name)]
    if missing:
        return DoctorCheck("packages", BAD, f"missing {', '.join(missing)}: pip install {' '.join(missing)}")
    return DoctorCheck(
        "packages", GOOD, ", ".join(f"{name} {_installed_version(name)}" for name in names if name != "torch")
    )


def _check_extra(extra: str, names: list[str]) -> DoctorCheck:
    missing = [name for name in names if not _installed_version(name)]
    if missing:
        return DoctorCheck(f"extra {extra}", MISSING, f"without {', '.join(missing)}: pip install 'potluck[{extra}]'")
    return DoctorCheck(f"extra {extra}", GOOD, ", ".join(f"{name} {_installed_version(name)}" for name in names))


def _installed_version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _check_runs_folder(folder: Path) -> Iterator[DoctorCheck]:
    existing = _nearest_existing(folder)
    if existing.is_dir() and os.access(existing, os.W_OK):
        yield DoctorCheck("runs", GOOD, f"{folder.absolute()} can be written")
    else:
        yield DoctorCheck("runs", BAD, f"{existing} cannot be written; choose another folder with --out")


def _check_datasets(root: Path | None) -> Iterator[DoctorCheck]:
    try:
        from potluck.data import info, names
        from potluck.data.dataset_source import data_roots
    except (ImportError, OSError) as error:
        yield DoctorCheck("data", BAD, str(error))
        return
    yield DoctorCheck("data", GOOD, f"searched for in {', '.join(map(str, data_roots(root)))}")
    for name in names():
        known = info(name, root)
        if known.location is not None:
            yield DoctorCheck(f"data {name}", GOOD, known.location)
        elif known.train:
            yield DoctorCheck(f"data {name}", MISSING, f"see: potluck data info {name}")


def _check_free_space(folder: Path) -> Iterator[DoctorCheck]:
    memory = _free_memory()
    if memory is not None:
        yield DoctorCheck("memory", GOOD, f"{format_bytes(memory)} free")
    yield DoctorCheck("disk", GOOD, f"{format_bytes(shutil.disk_usage(_nearest_existing(folder)).free)} free")


def _free_memory() -> int | None:
    """Bytes that are available without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    free = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(free[0]) * 1024 if free else None


def _nearest_existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())

"""A run's folder as a report sees it: the resolved job, the journal and, once it is over, the summary."""

from __future__ import annotations

import time
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from potluck.errors import RunError, UserError
from potluck.fleet import Fleet
from potluck.settings import decode_settings

__all__ = ["RunFolder", "Stamp", "find_runs", "open_run"]

Stamp = tuple[int, int]  # of a file: when it was changed and how long it is

_SILENT_S = 60.0  # after which a run that writes nothing is taken to have been killed
JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class RunFolder:
    """Where a run is kept."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    def job_text(self) -> str:
        return _cached_text(self.path / "job.toml")

    def load_job(self) -> dict[str, Any]:
        """The job as plain data, not to be changed; nothing if it cannot be read."""
        return _parse_job(self.job_text())

    def load_summary(self) -> dict[str, Any]:
        """What the run said at its end; nothing while it goes (again)."""
        if self._is_resumed():
            return {}
        try:
            found = msgspec.json.decode(_cached_text(self.path / "summary.json") or "{}")
        except msgspec.DecodeError:
            return {}
        return found if isinstance(found, dict) else {}

    def load_fleet(self) -> Fleet | None:
        return _parse_fleet(self.job_text())

    def file_stamps(self) -> tuple[Stamp, ...]:
        """As long as they stay the same, so does all that its files say."""
        return tuple(_file_stamp(self.path / name) for name in (JOURNAL, "summary.json", "job.toml", "live.json"))

    def pareto_entries(self) -> list[dict[str, Any]]:
        """The entries of the explored table that the job holds, if it holds one."""
        table = self.load_job().get("rounds", {}).get("submodel", {}).get("table")
        rows: list[Any] = table.get("entries", []) if isinstance(table, dict) else []
        return [row for row in rows if isinstance(row, dict) and "macs" in row and "gain" in row]

    def world_kind(self) -> str:
        """Whether its seconds are real: a live run leaves a note in its folder."""
        return "live" if (self.path / "live.json").exists() else "simulated"

    def run_status(self) -> str:
        """`done`, `failed` or `interrupted` as the run said; else `running`, or `silent` if nothing is written."""
        said = self.load_summary().get("status")
        if said is not None:
            return str(said)
        return "running" if time.time() - self.journal.stat().st_mtime < _SILENT_S else "silent"

    def _is_resumed(self) -> bool:
        """A resumed run writes its journal after the summary of its first life."""
        try:
            return self.journal.stat().st_mtime > (self.path / "summary.json").stat().st_mtime + 1.0
        except OSError:
            return False


def open_run(path: Path) -> RunFolder:
    """The run in this folder, or the one whose journal this is."""
    folder = path.parent if path.name == JOURNAL else path
    if not (folder / JOURNAL).is_file():
        raise RunError(f"{path} is not the folder of a run: it has no {JOURNAL}; give one such as runs/<id>")
    return RunFolder(folder)


def find_runs(root: Path) -> list[RunFolder]:
    """The runs in a folder, or the one that it is; the newest first."""
    if (root / JOURNAL).is_file():
        return [RunFolder(root)]
    found = [RunFolder(path.parent) for path in root.glob(f"*/{JOURNAL}")]
    return sorted(found, key=lambda run: run.journal.stat().st_mtime, reverse=True)


def _cached_text(path: Path) -> str:
    """What is in a file, read again only where it was changed."""
    return _read_text(path, _file_stamp(path))


@lru_cache(maxsize=512)
def _read_text(path: Path, stamp: Stamp) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _file_stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return 0, -1
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=128)
def _parse_job(job: str) -> dict[str, Any]:
    try:
        return tomllib.loads(job)
    except tomllib.TOMLDecodeError:
        return {}


@lru_cache(maxsize=32)
def _parse_fleet(job: str) -> Fleet | None:
    try:
        return decode_settings(_parse_job(job).get("fleet"), Fleet, "fleet")
    except UserError:
        return None

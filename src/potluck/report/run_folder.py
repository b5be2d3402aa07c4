"""Reads a run folder: the resolved job, the journal and, once the run has ended, the summary."""

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
from potluck.journal.standby_status import read_standby_sentences
from potluck.journal.storage_warning import read_warning
from potluck.settings import decode_settings

__all__ = ["RunFolder", "Stamp", "find_runs", "open_run"]

Stamp = tuple[int, int]  # of a file: modification time (ns) and size

_SILENT_S = 60.0  # a run that writes nothing for so long was probably killed
JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run. Files are cached and read again when they change."""

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
        """The job as plain data (do not modify); empty if it cannot be read."""
        return _parse_job(self.job_text())

    def load_summary(self) -> dict[str, Any]:
        """The summary; empty while the run is in progress or has been resumed."""
        if self._is_resumed():
            return {}
        try:
            summary = msgspec.json.decode(_cached_text(self.path / "summary.json") or "{}")
        except msgspec.DecodeError:
            return {}
        return summary if isinstance(summary, dict) else {}

    def load_fleet(self) -> Fleet | None:
        return _parse_fleet(self.job_text())

    def file_stamps(self) -> tuple[Stamp, ...]:
        """The stamps of all files; while they are unchanged, so is the content."""
        return tuple(_file_stamp(self.path / name) for name in (JOURNAL, "summary.json", "job.toml", "live.json"))

    def pareto_entries(self) -> list[dict[str, Any]]:
        """The entries of the job's Pareto table, if it has one."""
        table = self.load_job().get("rounds", {}).get("submodel", {}).get("table")
        rows: list[Any] = table.get("entries", []) if isinstance(table, dict) else []
        return [row for row in rows if isinstance(row, dict) and "macs" in row and "gain" in row]

    def world_kind(self) -> str:
        """`live` or `simulated`; a live run has a status file in its folder."""
        return "live" if (self.path / "live.json").exists() else "simulated"

    def run_status(self) -> str:
        """`done`, `failed` or `interrupted` from the summary; else `running`, or `silent` if nothing is written."""
        status = self.load_summary().get("status")
        if status is not None:
            return str(status)
        if self.storage_warning():
            return "running"
        changed_at = _file_stamp(self.journal)[0] / 1e9
        return "running" if time.time() - changed_at < _SILENT_S else "silent"

    def storage_warning(self) -> str:
        """Why a live run's folder cannot be written, as its coordinator says; empty while it can be."""
        warning = read_warning(self.path)
        return warning.sentence() if warning is not None else ""

    def standby_sentences(self) -> list[str]:
        """What a live run's folder says of a second coordinator."""
        return read_standby_sentences(self.path) if self.world_kind() == "live" else []

    def _is_resumed(self) -> bool:
        """Whether the journal is newer than the summary, which a resumed run leaves from before."""
        try:
            return self.journal.stat().st_mtime > (self.path / "summary.json").stat().st_mtime + 1.0
        except OSError:
            return False


def open_run(path: Path) -> RunFolder:
    """The run in this folder, or the run of this journal file."""
    folder = path.parent if path.name == JOURNAL else path
    if not (folder / JOURNAL).is_file():
        raise RunError(f"{path} is not a run folder: it has no {JOURNAL}; give one such as runs/<id>")
    return RunFolder(folder)


def find_runs(root: Path) -> list[RunFolder]:
    """The runs in a folder, newest first; a run folder itself gives that run."""
    if (root / JOURNAL).is_file():
        return [RunFolder(root)]
    runs = [RunFolder(path.parent) for path in root.glob(f"*/{JOURNAL}")]
    return sorted(runs, key=lambda run: run.journal.stat().st_mtime, reverse=True)


def _cached_text(path: Path) -> str:
    """The text of a file, read again only when it changed."""
    return _read_text(path, _file_stamp(path))


@lru_cache(maxsize=512)
def _read_text(path: Path, stamp: Stamp) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _file_stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return 0, -1
    return status.st_mtime_ns, status.st_size


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

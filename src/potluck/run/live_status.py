"""A file in a live run's folder that says which process leads it, where, and which devices are connected.

`potluck status`, `stop` and `resume` read it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from potluck.atomic_file import write_atomically
from potluck.errors import RunError

__all__ = [
    "LiveStatus",
    "StatusTracker",
    "is_live_run",
    "read_live_status",
    "request_stop",
    "track_live_status",
    "write_live_status",
]

_FILE = "live.json"


class LiveStatus(msgspec.Struct, kw_only=True):
    """The state of a live run; `born` tells its process from a later one with the same number."""

    pid: int
    born: int
    listen: str
    certs: str = ""
    lab: bool = False
    ended: str = ""
    here: dict[str, int] = {}
    missing: list[str] = []
    updated: float = 0.0

    @staticmethod
    def for_this_process(listen: str, certs: Path | None) -> LiveStatus:
        return LiveStatus(
            pid=os.getpid(), born=_process_start_ticks(os.getpid()), listen=listen, certs=str(certs or "")
        )

    @property
    def is_alive(self) -> bool:
        return not self.ended and _process_start_ticks(self.pid) == self.born


class StatusTracker:
    """Keeps the file of one run up to date."""

    def __init__(self, folder: Path, status: LiveStatus, devices: Sequence[str]) -> None:
        self._folder = folder
        self.status = status
        self._devices = devices

    def update_members(self, joined: Mapping[str, int]) -> None:
        self.status.here = dict(joined)
        self.status.missing = sorted(set(self._devices) - joined.keys())
        write_live_status(self._folder, self.status)


@contextlib.contextmanager
def track_live_status(
    folder: Path, locator: str, certs: Path | None, devices: Sequence[str], *, lab: bool
) -> Iterator[StatusTracker]:
    """Within this context this process leads the run in `folder`; afterwards the file says how that ended."""
    status = LiveStatus.for_this_process(locator, certs)
    status.lab = lab
    write_live_status(folder, status)
    try:
        yield StatusTracker(folder, status, devices)
        status.ended = "the run is over"
    except BaseException as error:
        status.ended = f"{type(error).__name__}: {error}"
        raise
    finally:
        write_live_status(folder, status)


def write_live_status(folder: Path, status: LiveStatus) -> None:
    """Replace the status file atomically, so that readers see the old one or the new one."""
    status.updated = time.time()
    write_atomically(folder / _FILE, msgspec.json.encode(status))


def is_live_run(folder: Path | None) -> bool:
    """Whether this is the folder of a live run, whose times are wall-clock seconds."""
    return folder is not None and (folder / _FILE).exists()


def read_live_status(folder: Path) -> LiveStatus | None:
    """The status, if this is the folder of a live run."""
    try:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=LiveStatus)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise RunError(f"{folder / _FILE} cannot be read: {error}") from None


def request_stop(folder: Path) -> LiveStatus:
    """Ask the process that leads the run to stop at a safe point, as Ctrl-C does."""
    status = read_live_status(folder)
    if status is None:
        raise RunError(f"{folder} is not the folder of a live run")
    if not status.is_alive:
        raise RunError(f"no process leads {folder} any more ({status.ended or 'its process is gone'})")
    os.kill(status.pid, signal.SIGTERM)
    return status


def _process_start_ticks(pid: int) -> int:
    """When a process started, in kernel ticks; 0 if it does not exist, -1 if that is all that is known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) if fields[0] != "Z" else 0
    except (OSError, ValueError, IndexError):
        try:
            os.kill(pid, 0)
        except OSError:
            return 0
        return -1  # alive, on a system without /proc

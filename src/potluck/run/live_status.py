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

from potluck.atomic_file import read_decoded, write_atomically
from potluck.errors import RunError
from potluck.journal.standby_status import FollowStatus, StandbyStatus
from potluck.run.process_identity import process_start_ticks
from potluck.run.storage_monitor import StorageMonitor

__all__ = [
    "LIVE_FILE",
    "LiveStatus",
    "StatusTracker",
    "is_live_run",
    "read_live_status",
    "request_stop",
    "track_live_status",
    "write_live_status",
]

LIVE_FILE = "live.json"

_STANDBY_INTERVAL_S = 1.0


class LiveStatus(msgspec.Struct, kw_only=True):
    """The state of a live run; `born` tells its process from a later one with the same number."""

    pid: int
    born: int
    listen: str
    certs: str = ""
    lab: bool = False
    ended: str = ""
    joined: dict[str, int] = msgspec.field(name="here", default_factory=dict)  # device → incarnation
    missing: list[str] = []
    former: list[str] = []  # the devices that were connected when the run ended
    updated: float = 0.0
    term: int = 0  # of its leader
    run: str = ""  # with `term` and `coordinator` what `leadership.json` says, too
    coordinator: str = ""
    standbys: list[StandbyStatus] = []
    follows: FollowStatus | None = None  # this process is a standby and does not lead

    @staticmethod
    def for_this_process(listen: str, certs: Path | None) -> LiveStatus:
        return LiveStatus(pid=os.getpid(), born=process_start_ticks(os.getpid()), listen=listen, certs=str(certs or ""))

    @property
    def is_alive(self) -> bool:
        return not self.ended and process_start_ticks(self.pid) == self.born


class StatusTracker:
    """Keeps the file of one run up to date."""

    def __init__(self, folder: Path, status: LiveStatus, devices: Sequence[str], storage: StorageMonitor) -> None:
        self.folder = folder
        self.status = status
        self._devices = devices
        self._storage = storage

    def update_members(self, joined: Mapping[str, int]) -> None:
        self.status.joined = dict(joined)
        self.status.missing = sorted(set(self._devices) - joined.keys())
        self._write()

    def remember_members(self) -> None:
        """The run ends, and its devices will leave: a resumed run waits for those that are connected now."""
        self.status.former = sorted(self.status.joined)

    def catch_up(self) -> None:
        """Write what could not be written, if it can be now."""
        if self._storage.has_failed(LIVE_FILE) and self._storage.is_retry_due():
            self._write()

    def _write(self) -> None:
        self._storage.attempt(LIVE_FILE, lambda: write_live_status(self.folder, self.status))

    def update_standbys(self, standbys: list[StandbyStatus]) -> None:
        """Write what changed at once, and otherwise once a second."""
        before, self.status.standbys = self.status.standbys, standbys
        same = [(one.address, one.in_sync) for one in before] == [(one.address, one.in_sync) for one in standbys]
        if not same or time.time() - self.status.updated > _STANDBY_INTERVAL_S:
            self._write()


@contextlib.contextmanager
def track_live_status(tracker: StatusTracker) -> Iterator[StatusTracker]:
    """Within this context this process leads the run; afterwards the file says how that ended, if it can be written."""
    status = tracker.status
    try:
        yield tracker
        status.ended = "the run is over"
    except BaseException as error:
        status.ended = f"{type(error).__name__}: {error}"
        raise
    finally:
        with contextlib.suppress(OSError):
            write_live_status(tracker.folder, status)


def write_live_status(folder: Path, status: LiveStatus) -> None:
    """Replace the status file atomically, so that readers see the old one or the new one."""
    status.updated = time.time()
    write_atomically(folder / LIVE_FILE, msgspec.json.encode(status))


def is_live_run(folder: Path | None) -> bool:
    """Whether this is the folder of a live run, whose times are wall-clock seconds."""
    return folder is not None and (folder / LIVE_FILE).exists()


def read_live_status(folder: Path) -> LiveStatus | None:
    """The status, if this is the folder of a live run."""
    return read_decoded(folder / LIVE_FILE, msgspec.json.Decoder(LiveStatus).decode)


def request_stop(folder: Path) -> LiveStatus:
    """Ask the process that leads the run to stop at a safe point, as Ctrl-C does."""
    status = read_live_status(folder)
    if status is None:
        raise RunError(f"{folder} is not the folder of a live run")
    if not status.is_alive:
        raise RunError(f"no process leads {folder} any more ({status.ended or 'its process is gone'})")
    os.kill(status.pid, signal.SIGTERM)
    return status

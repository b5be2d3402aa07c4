"""A note in a live run's folder: who leads it, where, and who is there; for `status`, `stop` and `resume`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import msgspec

from potluck.errors import RunError

__all__ = ["LiveStatus", "is_live_run", "read_live_status", "request_stop", "write_live_status"]

_NAME = "live.json"


class LiveStatus(msgspec.Struct, kw_only=True):
    """How things stand; `born` tells the process from a later one of the same number."""

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


def write_live_status(folder: Path, ticket: LiveStatus) -> None:
    """Aside, and renamed: whoever looks finds the old or the new."""
    ticket.updated = time.time()
    aside = folder / f".{_NAME}.{os.getpid()}"
    aside.write_bytes(msgspec.json.encode(ticket))
    aside.replace(folder / _NAME)


def is_live_run(folder: Path | None) -> bool:
    """Whether this is the folder of a live run, whose seconds are those of the clock on the wall."""
    return folder is not None and (folder / _NAME).exists()


def read_live_status(folder: Path) -> LiveStatus | None:
    """The note, if this is the folder of a live run."""
    try:
        return msgspec.json.decode((folder / _NAME).read_bytes(), type=LiveStatus)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise RunError(f"{folder / _NAME} cannot be read: {error}") from None


def request_stop(folder: Path) -> LiveStatus:
    """Ask the process that leads the run to stop at a safe point, as Ctrl-C does."""
    ticket = read_live_status(folder)
    if ticket is None:
        raise RunError(f"{folder} is not the folder of a live run")
    if not ticket.is_alive:
        raise RunError(f"nobody leads {folder} any more ({ticket.ended or 'its process is gone'})")
    os.kill(ticket.pid, signal.SIGTERM)
    return ticket


def _process_start_ticks(pid: int) -> int:
    """When a process began, in the kernel's ticks; 0 if there is none, or no way to know."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) if fields[0] != "Z" else 0
    except (OSError, ValueError, IndexError):
        try:
            os.kill(pid, 0)
        except OSError:
            return 0
        return -1  # alive, on a system without /proc

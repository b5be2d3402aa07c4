"""Gives a run's folder one owner: `run.lock` names the process that writes to it, and since when.

A second writer is refused with who holds the folder; readers never ask. The owner holds a lock of the kernel on the
file, which ends with the process however it dies, and removes the file when it is done. Successors judge and replace
it one at a time: they hold a lock on the folder meanwhile. Where the file system has no such locks, the process that
the file names decides.

    owner                                      a successor
    alive on this machine                      refused
    dead (also: killed, machine restarted)     takes over
    on another machine, which may be alive     refused, unless it takes over deliberately; the owner, if it does live,
                                               notices before it writes its next checkpoint, and stops
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from potluck.errors import RunError
from potluck.run.process_identity import ProcessIdentity

__all__ = ["LOCK_FILE", "RunLock", "RunOwner", "lock_run", "read_owner"]

LOCK_FILE = "run.lock"

_MAX_BYTES = 1 << 16
_WRITING_S = 0.5  # an owner has written its name by then
_POLL_S = 0.02


class RunOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Who writes to a run's folder, as the lock file says."""

    process: ProcessIdentity
    since: str  # local time
    command: str = ""
    key: str = ""  # tells two owners apart

    @staticmethod
    def this_process() -> RunOwner:
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        return RunOwner(
            process=ProcessIdentity.of_this_process(), since=now, command=_command_words(), key=secrets.token_hex(8)
        )

    def describe(self) -> str:
        what = f" ({self.command})" if self.command else ""
        return f"process {self.process.pid}{what} on {self.process.host} since {self.since}"


class RunLock:
    """The ownership of one run's folder; a run that is not saved has no folder and always owns it."""

    def __init__(self, folder: Path | None, handle: int = -1, key: str = "") -> None:
        self.folder = folder
        self._handle = handle
        self._key = key

    def check_held(self) -> None:
        """Refuse to write where another process has taken the folder over; a lock that is not readable says nothing."""
        if self.folder is None:
            return
        owner = read_owner(self.folder)
        if owner is not None and owner.key != self._key:
            raise RunError(f"{self.folder} was taken over by {owner.describe()}; this process stops writing to it")

    def release(self) -> None:
        """Give the folder up, unless another process has taken it over."""
        if self.folder is None or self._handle < 0:
            return
        owner = read_owner(self.folder)
        if owner is None or owner.key == self._key:
            with contextlib.suppress(OSError):
                (self.folder / LOCK_FILE).unlink()
        with contextlib.suppress(OSError):
            os.close(self._handle)
        self._handle = -1


@contextlib.contextmanager
def lock_run(folder: Path | None, *, take_over: bool = False) -> Iterator[RunLock]:
    """Own a run's folder within this context; RunError names who else does.

    With `take_over` an owner is replaced that may still be alive on another machine; one that is alive on this machine
    never is.
    """
    lock = RunLock(None) if folder is None else _acquire(folder, take_over)
    try:
        yield lock
    finally:
        lock.release()


def read_owner(folder: Path) -> RunOwner | None:
    """Who holds or held the folder; None if nobody, or if that cannot be read."""
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=RunOwner)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _acquire(folder: Path, take_over: bool) -> RunLock:
    began, claim = time.monotonic(), RunOwner.this_process()
    while time.monotonic() < began + 2 * _WRITING_S:
        with _successor_lock(folder) as is_only_successor:
            is_written = time.monotonic() > began + _WRITING_S
            lock = _try_to_own(folder, claim, take_over, is_written) if is_only_successor else None
        if lock is not None:
            return lock
        time.sleep(_POLL_S)
    raise RunError(f"{folder} is held by another process, and {LOCK_FILE} does not say which; stop that first")


@contextlib.contextmanager
def _successor_lock(folder: Path) -> Iterator[bool]:
    """Whether no other process judges or replaces the folder's lock file within this context.

    Some file systems cannot lock a folder: there this is always so, and the checks of `_try_to_own` must do.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield _lock_handle(handle) is not False
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # a process that was forked meanwhile would keep it
        os.close(handle)


def _try_to_own(folder: Path, claim: RunOwner, take_over: bool, is_written: bool) -> RunLock | None:
    """One attempt; None where another process came in between.

    An owner that holds the kernel's lock may not have written its name yet, unless `is_written`.
    """
    path = folder / LOCK_FILE
    created, handle = _open_lock(path)
    if handle is None:
        return None
    with contextlib.ExitStack() as closing:
        closing.callback(os.close, handle)
        locked = _lock_handle(handle)
        if not _is_current(path, handle):
            return None
        owner = read_owner(folder)
        if owner is not None and owner.key != claim.key:
            _refuse_living(folder, owner, locked, take_over)
        if locked or (locked is None and created):
            _write_owner(path, handle, claim)
            if not _is_current(path, handle):  # it was taken for a dead owner's meanwhile
                return None
            closing.pop_all()
            return RunLock(folder, handle, claim.key)
        is_named, is_unlockable = owner is not None, locked is None
        if (is_named or is_unlockable) if is_written else (is_named and is_unlockable):
            _remove_stale(path, handle)
    return None


def _refuse_living(folder: Path, owner: RunOwner, locked: bool | None, take_over: bool) -> None:
    """`locked` is whether this process got the kernel's lock, None where there are none."""
    alive = owner.process.is_alive()
    if alive is None and locked and owner.process.shares_kernel():
        alive = False  # in another container, and its lock has ended with it
    if alive is False or (alive is None and take_over):
        return
    held = f"{folder} is held by {owner.describe()}"
    if alive:
        raise RunError(f"{held}; stop that first, or choose another folder")
    raise RunError(
        f"{held}, which cannot be checked from here; if it is dead, take the run over with --take-over"
        " (take_over=True in Python)"
    )


def _open_lock(path: Path) -> tuple[bool, int | None]:
    """Open the lock file, and whether it is new; None where it was removed in between."""
    try:
        return True, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        try:
            return False, os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False, None


def _lock_handle(handle: int) -> bool | None:
    """Whether this process now has the kernel's lock; None where the file system has none."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_current(path: Path, handle: int) -> bool:
    """Whether the open file is still the one of that name: an owner removes it when it is done."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def _remove_stale(path: Path, handle: int) -> None:
    """Remove the file of a dead owner; renamed first, so that of two successors only one removes it."""
    stale = path.with_name(f".{path.name}.{secrets.token_hex(4)}.stale")
    with contextlib.suppress(FileNotFoundError):
        path.rename(stale)
        if os.path.samestat(os.fstat(handle), stale.stat()):
            stale.unlink()
        else:  # another successor was faster, and this is its file
            stale.rename(path)


def _write_owner(path: Path, handle: int, owner: RunOwner) -> None:
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, msgspec.json.encode(owner) + b"\n", 0)
        os.fsync(handle)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _command_words() -> str:
    """Such as `potluck serve`; the arguments are nobody's business."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else ""
    return " ".join([program, *sys.argv[1:2]]) if program == "potluck" else program

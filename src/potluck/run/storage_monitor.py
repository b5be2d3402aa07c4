"""Decides what happens when a run's folder cannot be written: full, read-only or gone.

A simulated run ends with a StorageError; the last checkpoint is whole. A live run goes on: it warns, holds its records
in memory, tries again every second, and withdraws the warning once everything is written. If the folder still cannot be
written when the run ends, a StorageError says what was lost.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from potluck.errors import StorageError
from potluck.journal.storage_warning import StorageWarning, note_warning, withdraw_warning

__all__ = ["StorageMonitor", "map_storage_errors"]

_REPORT_INTERVAL_S = 60.0  # between log lines about the same outage
_REMEDIES = {
    "free some space": (errno.ENOSPC, errno.EDQUOT),
    "make it writable": (errno.EROFS, errno.EACCES, errno.EPERM),
    "reconnect its disk": (errno.ENOENT, errno.ESTALE, errno.ENOTDIR, errno.EIO, errno.ENODEV, errno.ENXIO),
}
_log = logging.getLogger("potluck")


class StorageMonitor:
    """What of a run could not be written, and why."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._tolerant = False
        self._failed: dict[str, OSError] = {}  # by what could not be written
        self._since = 0.0  # of the outage, in seconds since 1970
        self._tried_at = self._logged_at = 0.0
        self._last_attempt_s = 0.0

    @property
    def problem(self) -> OSError | None:
        """Why something is not written; None while all is well."""
        return next(iter(self._failed.values()), None)

    def has_failed(self, what: str) -> bool:
        return what in self._failed

    def tolerate_outages(self) -> None:
        """From now on an outage is a warning, until the run ends."""
        self._tolerant = True

    def attempt(self, what: str, write: Callable[[], object]) -> bool:
        """Write something; whether that succeeded. Raises StorageError where outages are not tolerated."""
        began = time.monotonic()
        try:
            write()
        except OSError as error:
            if not self._tolerant:
                raise self.error(error) from None
            self._note_failure(what, error, time.monotonic() - began)
            return False
        if self._failed.pop(what, None) is not None and not self._failed:
            self._end_outage()
        return True

    def postpone(self, what: str) -> None:
        """What is not even tried during an outage has failed, too."""
        assert self.problem is not None
        self._failed.setdefault(what, self.problem)

    def is_retry_due(self) -> bool:
        """Whether to try again: every second, less often where trying takes long."""
        return bool(self._failed) and time.monotonic() - self._tried_at >= max(1.0, 10 * self._last_attempt_s)

    def error(self, error: OSError, lost: str = "") -> StorageError:
        """What to raise: one line that says what is wrong, what was lost and what to do."""
        assert self._folder is not None
        loss = f"lost: {lost}; " if lost else ""
        return StorageError(
            f"cannot write {self._folder}: {describe_error(error)}; {loss}{_remedy(error)}, then continue from the"
            f" newest checkpoint with `potluck resume {self._folder}`"
        )

    def renew_warning(self, held_bytes: int, held_records: int, dropped: int, round: int) -> None:
        """Show other processes the outage, if there is one."""
        problem = self.problem
        if problem is None or self._folder is None:
            return
        warning = StorageWarning(
            problem=describe_error(problem), since=self._since, held_bytes=held_bytes, held_records=held_records,
            dropped_records=dropped, pid=os.getpid(), round=round,
        )  # fmt: skip
        note_warning(self._folder, warning)
        if time.monotonic() - self._logged_at > _REPORT_INTERVAL_S:
            self._logged_at = time.monotonic()
            _log.warning("%s: %s", self._folder, warning.sentence())

    def close(self) -> None:
        """The run has ended: nobody renews the warning any more."""
        if self._failed and self._folder is not None:
            withdraw_warning(self._folder)

    def _note_failure(self, what: str, error: OSError, seconds: float) -> None:
        self._tried_at, self._last_attempt_s = time.monotonic(), seconds
        if not self._failed:
            self._since, self._logged_at = time.time(), time.monotonic()
            _log.warning(
                "%s cannot be written (%s): training continues, and records are held in memory until it can; %s",
                self._folder, describe_error(error), _remedy(error),
            )  # fmt: skip
        self._failed[what] = error

    def _end_outage(self) -> None:
        assert self._folder is not None
        withdraw_warning(self._folder)
        _log.warning("%s can be written again, after %.0f s", self._folder, time.time() - self._since)


@contextmanager
def map_storage_errors(folder: Path | None) -> Iterator[None]:
    """Raise StorageError where the folder of a run cannot be created or opened for writing."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"cannot write {folder}: {describe_error(error)}; {_remedy(error)}, or choose another folder"
        ) from None


def describe_error(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _remedy(error: OSError) -> str:
    return next((remedy for remedy, numbers in _REMEDIES.items() if error.errno in numbers), "mend its disk")

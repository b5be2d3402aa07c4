"""Replaces a file in one step: a reader, also after a crash or a power failure, sees the old content or the new.

A file that is damaged all the same, by a disk or by hand, is recognised when it is read, and can be set aside.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from potluck.errors import DamagedFileError, RunError

__all__ = ["UNUSABLE", "mark_unusable", "read_decoded", "write_atomically"]

UNUSABLE = ".unusable"  # ends the name of a file that is damaged or not needed any more

Content = TypeVar("Content")


def read_decoded(path: Path, decode: Callable[[bytes], Content]) -> Content | None:
    """The content of a file in a run's folder; None if there is none, DamagedFileError if it cannot be decoded."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}); make it readable for this user") from None
    try:
        return decode(content)
    except (msgspec.DecodeError, ValueError) as error:
        raise DamagedFileError(path, str(error) if content else "it is empty") from None


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write `data` to a temporary file beside `path`, sync it to disk and rename it.

    A private file is readable by this user only, at every moment. Several processes may write the same file; the last
    rename takes effect. A process that is killed may leave a file `.NAME.*.partial` behind.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):  # on a disk that became read-only, the first error says more
            partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def mark_unusable(path: Path) -> None:
    """Rename a file that cannot be used, so that nothing reads it and nothing is lost; replaces an earlier one."""
    os.replace(path, path.with_name(path.name + UNUSABLE))
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """The rename itself survives a power failure only once the folder is on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

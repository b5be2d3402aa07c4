"""A standby's copy of a run's folder: at every instant one from which the run can be resumed.

Order keeps it so: the journal is copied first, then the checkpoint that refers to it, aside, compared with its digest
and renamed. An interrupted file continues where it stopped. Once the copy is frozen, nothing changes it any more.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from potluck.checkpoint_files import CHECKPOINT_FOLDER, list_checkpoints, version_of
from potluck.errors import RunError
from potluck.worlds.live.replica_messages import JOURNAL, FileEntry, FolderManifest, is_replicated_file

__all__ = ["CopyFrozenError", "FetchChunk", "FolderCopy"]

FetchChunk = Callable[[str, str, int], bytes]  # (name, digest, offset) → the bytes there, checked

_CHECKPOINTS_KEPT = 2
_PRIVATE = ("join.secret", "admitted.json")


class CopyFrozenError(Exception):
    """The copy has become the leader's own folder meanwhile."""


class FolderCopy:
    """The files of one run, as far as they have been copied."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = -1  # of the newest checkpoint that the present leader has, too
        self.session = ""  # of the leader that it was last compared with
        self._frozen = False
        self._lock = threading.Lock()  # held while a file changes
        self._digests: dict[str, str] = {}
        (folder / CHECKPOINT_FOLDER).mkdir(parents=True, exist_ok=True)

    @property
    def journal_bytes(self) -> int:
        path = self.folder / JOURNAL
        return path.stat().st_size if path.exists() else 0

    def freeze(self) -> None:
        """From now on the folder belongs to a coordinator that leads."""
        with self._lock:
            self._frozen = True

    def begin_session(self, manifest: FolderManifest, prefix_digest: Callable[[int], str]) -> None:
        """Follow another leader: keep the part of the journal that it has, too."""
        length = min(self.journal_bytes, manifest.journal_bytes)
        if length and prefix_digest(length) != _journal_digest(self.folder / JOURNAL, length):
            length = 0
        with self._changing():
            (self.folder / JOURNAL).touch()
            os.truncate(self.folder / JOURNAL, length)
        self.version, self.session = -1, manifest.session

    def update(self, manifest: FolderManifest, fetch: FetchChunk) -> None:
        """Copy what is new."""
        assert self.session == manifest.session
        for entry in manifest.files:
            if not is_replicated_file(entry.name):
                raise RunError(f"the leader offers a file that no run has: {entry.name!r}")
        self._extend_journal(manifest.journal_bytes, fetch)
        for entry in manifest.files:
            self._copy_file(entry, fetch)
        if manifest.version >= 0:
            self._remove_other_checkpoints(manifest.version)
        self.version = manifest.version

    def _extend_journal(self, length: int, fetch: FetchChunk) -> None:
        path, position = self.folder / JOURNAL, self.journal_bytes
        if position >= length:
            return
        with path.open("ab") as file:
            while position < length:
                data = fetch(JOURNAL, "", position)[: length - position]
                if not data:
                    break
                with self._changing():
                    file.write(data)
                    file.flush()
                position += len(data)
            os.fsync(file.fileno())

    def _copy_file(self, entry: FileEntry, fetch: FetchChunk) -> None:
        path = self.folder / entry.name
        if self._digests.get(entry.name) == entry.digest and path.exists():
            return
        if path.exists() and path.stat().st_size == entry.size and _file_digest(path) == entry.digest:
            self._digests[entry.name] = entry.digest
            return
        partial = path.with_name(f".{path.name}.{entry.digest[:16]}.copy")
        self._fetch_rest(partial, entry, fetch)
        if _file_digest(partial) != entry.digest:
            partial.unlink()
            raise RunError(f"{entry.name} arrived damaged; it is copied again")
        with self._changing():
            os.replace(partial, path)
            _sync_folder(path.parent)
        checkpoints = f"{CHECKPOINT_FOLDER}/"
        if entry.name.startswith(checkpoints):
            self._digests = {name: kept for name, kept in self._digests.items() if not name.startswith(checkpoints)}
        self._digests[entry.name] = entry.digest
        for other in path.parent.glob(f".{path.name}.*.copy"):
            other.unlink()

    def _fetch_rest(self, partial: Path, entry: FileEntry, fetch: FetchChunk) -> None:
        handle = os.open(partial, os.O_RDWR | os.O_CREAT, 0o600 if entry.name in _PRIVATE else 0o644)
        with os.fdopen(handle, "r+b") as file:
            position = min(file.seek(0, os.SEEK_END), entry.size)
            file.truncate(position)
            while position < entry.size:
                data = fetch(entry.name, entry.digest, position)[: entry.size - position]
                if not data:
                    raise RunError(f"{entry.name} is shorter than the leader says")
                with self._changing():
                    file.write(data)
                position += len(data)
            file.flush()
            os.fsync(file.fileno())

    def _remove_other_checkpoints(self, newest: int) -> None:
        """Keep those of the leader's run: not what a former leader committed beyond it, nor old ones."""
        checkpoints = list_checkpoints(self.folder / CHECKPOINT_FOLDER)
        later = [path for path in checkpoints if version_of(path) > newest]
        with self._changing():
            for path in [*later, *checkpoints[len(later) + _CHECKPOINTS_KEPT :]]:
                path.unlink()
            for partial in (self.folder / CHECKPOINT_FOLDER).glob(".*.copy"):
                partial.unlink()

    def _changing(self) -> _Changing:
        return _Changing(self)


class _Changing:
    """Holds the copy's lock; CopyFrozenError if it may not change any more."""

    def __init__(self, copy: FolderCopy) -> None:
        self._copy = copy

    def __enter__(self) -> None:
        self._copy._lock.acquire()
        if self._copy._frozen:
            self._copy._lock.release()
            raise CopyFrozenError

    def __exit__(self, *error: object) -> None:
        self._copy._lock.release()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _journal_digest(path: Path, length: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while length > 0 and (data := file.read(min(length, 1 << 20))):
            digest.update(data)
            length -= len(data)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

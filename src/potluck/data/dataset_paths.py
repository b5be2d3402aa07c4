"""Finds the folder of a data set, or says where it was looked for and how to get it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from potluck.errors import DataError

__all__ = ["data_roots", "find_folder", "search_folder"]

VARIABLE = "POTLUCK_DATA"


def data_roots(root: Path | None) -> tuple[Path, ...]:
    """The folders to search, in order: the given one, $POTLUCK_DATA, the cache."""
    named = os.environ.get(VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "potluck" / "data"
    candidates = [root, Path(named) if named else None, cache]
    return tuple(dict.fromkeys(root_folder.expanduser() for root_folder in candidates if root_folder is not None))


def search_folder(folders: tuple[str, ...], first: str, root: Path | None) -> Path | None:
    """The first folder that holds the file `first`, plain or gzipped."""
    for folder in _candidate_folders(folders, root):
        if (folder / first).is_file() or (folder / f"{first}.gz").is_file():
            return folder
    return None


def find_folder(name: str, folders: tuple[str, ...], first: str, root: Path | None, get: str) -> Path:
    """Return the set's folder; DataError names the paths tried and how to get the data."""
    folder = search_folder(folders, first, root)
    if folder is None:
        tried = ", ".join(str(candidate / first) for candidate in _candidate_folders(folders, root))
        raise DataError(
            f"{name} was not found (tried {tried}); {get}, or point to another folder with --data DIR or ${VARIABLE}"
        )
    return folder


def _candidate_folders(folders: tuple[str, ...], root: Path | None) -> Iterator[Path]:
    """Relative folders below each root first, absolute ones last."""
    for root_folder in data_roots(root):
        yield from (root_folder / folder for folder in folders if not Path(folder).is_absolute())
    yield from (Path(folder) for folder in folders if Path(folder).is_absolute())

"""Where data sets are looked for, and what is said when one is not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from potluck.errors import DataError

__all__ = ["data_roots", "find_folder", "search_folder"]

VARIABLE = "POTLUCK_DATA"


def data_roots(root: Path | None) -> tuple[Path, ...]:
    """The given folder, then $POTLUCK_DATA, then the cache."""
    named = os.environ.get(VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "potluck" / "data"
    places = [root, Path(named) if named else None, cache]
    return tuple(dict.fromkeys(place.expanduser() for place in places if place is not None))


def search_folder(folders: tuple[str, ...], first: str, root: Path | None) -> Path | None:
    """The first folder that holds the file `first`, plain or gzipped."""
    for folder in _candidate_folders(folders, root):
        if (folder / first).is_file() or (folder / f"{first}.gz").is_file():
            return folder
    return None


def find_folder(name: str, folders: tuple[str, ...], first: str, root: Path | None, get: str) -> Path:
    """The set's folder; DataError says where it was looked for and how to get it."""
    folder = search_folder(folders, first, root)
    if folder is None:
        looked = ", ".join(str(candidate / first) for candidate in _candidate_folders(folders, root))
        raise DataError(f"{name} is not here: looked for {looked}; {get} (another place: --data DIR or ${VARIABLE})")
    return folder


def _candidate_folders(folders: tuple[str, ...], root: Path | None) -> Iterator[Path]:
    """An absolute folder stands for itself, and comes last."""
    for place in data_roots(root):
        yield from (place / folder for folder in folders if not Path(folder).is_absolute())
    yield from (Path(folder) for folder in folders if Path(folder).is_absolute())

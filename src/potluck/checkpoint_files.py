"""Names the checkpoints of a run: `checkpoints/00000010.safetensors` is that of version 10.

Other files that somebody put beside them are none of the run's: they are neither read, counted nor deleted.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["CHECKPOINT_FOLDER", "checkpoint_name", "list_checkpoints", "newest_version", "version_of"]

CHECKPOINT_FOLDER = "checkpoints"  # in a run's folder

_NAME = re.compile(r"\d{8,}\.safetensors", re.ASCII)


def checkpoint_name(version: int) -> str:
    return f"{version:08d}.safetensors"


def version_of(checkpoint: Path) -> int:
    return int(checkpoint.stem)


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in their folder, the newest first."""
    paths = [path for path in folder.glob("*.safetensors") if _NAME.fullmatch(path.name)]
    return sorted(paths, key=version_of, reverse=True)


def newest_version(folder: Path) -> int:
    """The version of the newest checkpoint in their folder; -1 if there is none."""
    return max(map(version_of, list_checkpoints(folder)), default=-1)

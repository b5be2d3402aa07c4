"""Finds the checkpoint from which a run resumes: the newest that is whole and that the rest of the folder still fits.

    newest checkpoint damaged                        the one before, the journal cut to match
    journal or best model lost, as a checkpoint      an older checkpoint that needs less of them, if one is kept;
    needs them                                       else a simulation starts again (its result is then the same as
                                                     that of a run without damage), and a live run goes on without
                                                     what was lost, since its training cannot be repeated
    no usable checkpoint                             the beginning

What cannot be used is renamed, not deleted. Nothing changes before `prepare_folder` is called.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from torch import Tensor

from potluck.atomic_file import mark_unusable
from potluck.checkpoint_files import CHECKPOINT_FOLDER, list_checkpoints
from potluck.errors import RunError
from potluck.journal import RecordDecoder
from potluck.loops.run_progress import RunProgress
from potluck.model import weights_file
from potluck.run.device_state import SavedDeviceStates

__all__ = ["JOURNAL_FILE", "CheckpointMetadata", "ResumePoint", "beginning", "find_resume_point"]

JOURNAL_FILE = "journal.jsonl"
_EXAMINED_BYTES = 1 << 20


class CheckpointMetadata(msgspec.Struct):
    """The state of a run at a point from which it can resume, as a checkpoint stores it beside the tensors."""

    time: float
    position: int  # of the journal
    progress: RunProgress = msgspec.field(name="books")
    kept: SavedDeviceStates = msgspec.field(default_factory=SavedDeviceStates)


@dataclass(frozen=True)
class ResumePoint:
    """Where a run goes on, and what of its folder cannot be used."""

    checkpoint: CheckpointMetadata
    tensors: dict[str, Tensor] | None = None  # None: the run starts again from the beginning
    name: str = "the beginning"
    unusable: tuple[Path, ...] = ()  # files that are renamed
    problems: tuple[str, ...] = ()

    @property
    def notice(self) -> str:
        """What is wrong and where the run goes on, in one line; empty if nothing is wrong."""
        return f"{'; '.join(self.problems)}; resuming from {self.name}" if self.problems else ""

    def prepare_folder(self) -> None:
        """Rename what cannot be used."""
        for path in self.unusable:
            mark_unusable(path)


def beginning() -> ResumePoint:
    """Of a new run."""
    return ResumePoint(CheckpointMetadata(0.0, 0, RunProgress()))


def find_resume_point(folder: Path, *, keep_training: bool) -> ResumePoint:
    """Where the run in this folder goes on.

    With `keep_training`, a whole checkpoint is better than a whole journal: a run whose time and devices are real
    cannot be repeated.
    """
    files = _FolderFiles(folder)
    unusable: list[Path] = []
    problems: list[str] = []
    patched: ResumePoint | None = None
    for path in list_checkpoints(folder / CHECKPOINT_FOLDER):
        name = f"checkpoint {path.stem}"
        try:
            tensors, checkpoint = _read(path)
        except (RunError, msgspec.DecodeError) as error:
            reason = str(error).removeprefix(f"cannot read checkpoint {path}: ")
            problems.append(f"{name} is damaged ({reason})")
            unusable.append(path)
            continue
        lost = files.find_loss(checkpoint, name)
        if lost is None:
            return ResumePoint(checkpoint, tensors, name, tuple(unusable), tuple(problems))
        patched = patched or ResumePoint(
            files.without_losses(checkpoint), tensors, name, tuple(unusable), (*problems, lost)
        )
        problems.append(lost)
        unusable.append(path)
    if keep_training and patched is not None:
        return patched
    if not unusable:
        problems.append("the run ended before its first checkpoint")
    if files.journal_bytes:
        unusable.append(files.journal)
    return replace(beginning(), unusable=tuple(unusable), problems=tuple(problems))


def _read(path: Path) -> tuple[dict[str, Tensor], CheckpointMetadata]:
    tensors, metadata = weights_file.read_checkpoint(path)
    return tensors, msgspec.json.decode(metadata, type=CheckpointMetadata)


class _FolderFiles:
    """What a checkpoint needs beside itself: the journal up to its position, and the best model that it knows."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / JOURNAL_FILE
        self.journal_bytes = self.journal.stat().st_size if self.journal.exists() else 0
        best = folder / weights_file.BEST_FILE
        self._best_damage = weights_file.find_damage(best) if best.exists() else "it is missing"

    def find_loss(self, checkpoint: CheckpointMetadata, name: str) -> str | None:
        if self.journal_bytes < checkpoint.position:
            has = f"{self.journal_bytes:,} of {checkpoint.position:,} bytes"
            return f"{JOURNAL_FILE} is shorter than {name} says ({has})"
        if not self._ends_line(checkpoint.position) or not self._has_records(checkpoint.position):
            return f"{JOURNAL_FILE} is damaged where {name} was written"
        if checkpoint.progress.best_model is not None and self._best_damage is not None:
            return f"{weights_file.BEST_FILE}, which {name} needs, is damaged ({self._best_damage})"
        return None

    def without_losses(self, checkpoint: CheckpointMetadata) -> CheckpointMetadata:
        """The checkpoint, to go on with what is left of the journal and perhaps without the best model."""
        progress = checkpoint.progress
        if progress.best_model is not None and self._best_damage is not None:
            progress = msgspec.structs.replace(progress, best_model=None)
        return msgspec.structs.replace(checkpoint, progress=progress, position=self._last_line_end(checkpoint.position))

    def _ends_line(self, position: int) -> bool:
        if position == 0:
            return True
        with self.journal.open("rb") as file:
            file.seek(position - 1)
            return file.read(1) == b"\n"

    def _has_records(self, position: int) -> bool:
        """Whether one of the last lines is a record; single bad lines may be there."""
        start = max(0, position - _EXAMINED_BYTES)
        with self.journal.open("rb") as file:
            file.seek(start)
            lines = file.read(position - start).split(b"\n")[1 if start else 0 : -1]
        decoder = RecordDecoder()
        return not lines or any(decoder.decode_line(line) is not None for line in reversed(lines))

    def _last_line_end(self, position: int) -> int:
        """The end of the last whole line at or before a position."""
        end = min(position, self.journal_bytes)
        while end > 0 and not self._ends_line(end):
            start = max(0, end - (1 << 20))
            with self.journal.open("rb") as file:
                file.seek(start)
                line_end = file.read(end - start).rfind(b"\n")
            end = start + line_end + 1 if line_end >= 0 else start
        return end

"""The coordinator's copy of the whole model: what the run began with, checkpoints, and copies sent to the centre."""

from __future__ import annotations

from typing import Any

from potluck.loops.pipeline.mathematics import StageMathematics, join_chunks
from potluck.loops.pipeline.messages import Replica
from potluck.loops.pipeline.shelf import Shelf
from potluck.payload import Payload

__all__ = ["Archive"]


class Archive:
    """One whole version, and the pieces of newer ones that are not whole yet."""

    def __init__(self, mathematics: StageMathematics, layers: int, version: int, numbers: Any) -> None:
        self._mathematics = mathematics
        self._layers = layers
        self.version = version
        self.made = 0
        self.numbers = numbers
        self._pieces: dict[int, dict[int, tuple[int, int, Payload]]] = {}  # by version and first layer
        self._arriving = Shelf("")

    def add(self, version: int, made: int, first: int, last: int, payload: Payload) -> bool:
        """Take in some layers; whether the version is whole with them and newer than the one that was here."""
        if version < self.version or (version == self.version and made == self.made):
            return False
        pieces = self._pieces.setdefault(version, {})
        pieces[first] = (first, last, payload)
        if sum(end - begin + 1 for begin, end, _ in pieces.values()) < self._layers:
            return False
        self.numbers = self._mathematics.join(0, self._layers - 1, list(pieces.values()))
        self.version, self.made = version, made
        self._pieces = {later: kept for later, kept in self._pieces.items() if later > version}
        return True

    def take(self, sender: str, replica: Replica) -> bool | None:
        """Take in a piece of a copy; None until the copy is whole, then whether the model is."""
        pieces = self._arriving.take(sender, replica)
        if pieces is None:
            return None
        return self.add(replica.version, replica.made, replica.first, replica.last, join_chunks(pieces))

    @property
    def exams(self) -> int:
        """Held-out batches that the stages can be measured on."""
        return self._mathematics.exams

    def piece(self, first: int, last: int) -> Payload:
        return self._mathematics.pack(self.numbers, first, last)

    def begin_term(self) -> None:
        """Pieces of different terms do not fit together."""
        self._pieces.clear()
        self._arriving.drop_arriving()

"""The coordinator's copy of the whole model: what the run began with, checkpoints, and copies sent to the centre."""

from __future__ import annotations

from typing import Any

from potluck.loops.pipeline.checks import joined
from potluck.loops.pipeline.mathematics import StageMathematics
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
        if not _is_whole([(begin, end) for begin, end, _ in pieces.values()], self._layers):
            return False
        self.numbers = self._mathematics.join(0, self._layers - 1, list(pieces.values()))
        self.version, self.made = version, made
        self._pieces = {later: kept for later, kept in self._pieces.items() if later > version}
        return True

    def take(self, sender: str, replica: Replica) -> bool | str | None:
        """Take in a piece of a copy; None until the copy is whole, then whether the model is, or why it is no copy."""
        pieces = self._arriving.take(sender, replica)
        if pieces is None:
            return None
        payload = joined(self._mathematics, replica, pieces)
        if isinstance(payload, str):
            return payload
        return self.add(replica.version, replica.made, replica.first, replica.last, payload)

    def refusal(self, first: int, last: int, payload: Payload) -> str | None:
        """Why these cannot be the numbers of some layers."""
        return self._mathematics.numbers_refusal(first, last, payload)

    @property
    def exams(self) -> int:
        """Held-out batches that the stages can be measured on."""
        return self._mathematics.exams

    @property
    def exam_samples(self) -> int:
        """How many samples they have together."""
        return sum(self._mathematics.exam_size(number) for number in range(self.exams))

    def piece(self, first: int, last: int) -> Payload:
        return self._mathematics.pack(self.numbers, first, last)

    def begin_term(self) -> None:
        """Pieces of different terms do not fit together."""
        self._pieces.clear()
        self._arriving.drop_arriving()


def _is_whole(pieces: list[tuple[int, int]], layers: int) -> bool:
    """Whether these stretches of layers, side by side, are all layers."""
    pieces.sort()
    begins, ends = [begin for begin, _ in pieces], [end + 1 for _, end in pieces]
    return [*begins, layers] == [0, *ends]

"""All versions of layers that a device has in memory: its own, copies of its neighbour's, those of layouts before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from potluck.loops.pipeline.messages import Replica
from potluck.loops.pipeline.sourcing import Held
from potluck.payload import Payload

__all__ = ["Shelf"]

_MOST_ARRIVING = 64  # copies of one sender that are not whole


class _Place(NamedTuple):
    version: int
    first: int
    last: int


class _Kept(NamedTuple):
    made: int
    numbers: Any


class Shelf:
    """Versions by layers and number."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._kept: dict[_Place, _Kept] = {}
        self._arriving: dict[tuple[str, _Place], dict[int, Payload]] = {}

    def put(self, version: int, made: int, first: int, last: int, numbers: Any) -> None:
        self._kept[_Place(version, first, last)] = _Kept(made, numbers)

    def find(self, version: int, first: int, last: int) -> Any | None:
        """Numbers of this version that cover these layers."""
        for place, kept in self._kept.items():
            if place.version == version and place.first <= first and last <= place.last:
                return kept.numbers
        return None

    def has(self, version: int, made: int, first: int, last: int) -> bool:
        """Whether it has these layers in this version, made in this term."""
        return any(
            (place.version, kept.made) == (version, made) and place.first <= first and last <= place.last
            for place, kept in self._kept.items()
        )

    def exactly(self, version: int, first: int, last: int) -> Any | None:
        """Numbers of this version that are of these layers and no others."""
        kept = self._kept.get(_Place(version, first, last))
        return None if kept is None else kept.numbers

    def listing(self) -> tuple[Held, ...]:
        return tuple(
            Held(self._device, place.first, place.last, place.version, kept.made) for place, kept in self._kept.items()
        )

    def keep(self, wanted: Callable[[int, int, int], bool]) -> None:
        """Forget all but the wanted (version, first layer, last layer)."""
        self._kept = {place: kept for place, kept in self._kept.items() if wanted(*place)}

    def purge(self, counts: Callable[[int, int], bool]) -> None:
        """Forget all that does not count: versions that a term made, by (version, term)."""
        self._kept = {place: kept for place, kept in self._kept.items() if counts(place.version, kept.made)}

    def take(self, sender: str, replica: Replica) -> list[Payload] | None:
        """Take in a piece of a copy; the pieces once all are there."""
        place = _Place(replica.version, replica.first, replica.last)
        pieces = self._arriving.setdefault((sender, place), {})
        pieces[replica.place] = replica.payload
        self._bound(sender)
        if len(pieces) < replica.count:
            return None
        self._arriving = {key: kept for key, kept in self._arriving.items() if not _is_older(key, sender, place)}
        return [pieces[number] for number in range(replica.count)]

    def _bound(self, sender: str) -> None:
        """Whoever begins copies without end loses the oldest."""
        begun = [key for key in self._arriving if key[0] == sender]
        for key in sorted(begun, key=lambda key: key[1])[:-_MOST_ARRIVING]:
            del self._arriving[key]

    def drop_arriving(self) -> None:
        self._arriving.clear()


def _is_older(key: tuple[str, _Place], sender: str, place: _Place) -> bool:
    """Whether it is the same or an older version of the same layers, of which a piece may have been lost."""
    return key[0] == sender and key[1][1:] == place[1:] and key[1].version <= place.version

"""All versions of layers that a device has in memory: its own, copies of its neighbour's, those of layouts before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from potluck.loops.pipeline.layer_sources import HeldLayers
from potluck.loops.pipeline.messages import Replica
from potluck.payload import Payload

__all__ = ["VersionStore"]

_MOST_ARRIVING = 64  # copies of one sender that are not whole


class _VersionKey(NamedTuple):
    version: int
    first: int
    last: int


class _StoredVersion(NamedTuple):
    made: int
    weights: Any


class VersionStore:
    """Versions by layers and number."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._versions: dict[_VersionKey, _StoredVersion] = {}
        self._incoming: dict[tuple[str, _VersionKey], dict[int, Payload]] = {}

    def add_version(self, version: int, made: int, first: int, last: int, numbers: Any) -> None:
        self._versions[_VersionKey(version, first, last)] = _StoredVersion(made, numbers)

    def find_covering(self, version: int, first: int, last: int) -> Any | None:
        """Numbers of this version that cover these layers."""
        for place, kept in self._versions.items():
            if place.version == version and place.first <= first and last <= place.last:
                return kept.weights
        return None

    def has_version(self, version: int, made: int, first: int, last: int) -> bool:
        """Whether it has these layers in this version, made in this term."""
        return any(
            (place.version, kept.made) == (version, made) and place.first <= first and last <= place.last
            for place, kept in self._versions.items()
        )

    def find_exact(self, version: int, first: int, last: int) -> Any | None:
        """Numbers of this version that are of these layers and no others."""
        kept = self._versions.get(_VersionKey(version, first, last))
        return None if kept is None else kept.weights

    def list_held(self) -> tuple[HeldLayers, ...]:
        return tuple(
            HeldLayers(self._device, place.first, place.last, place.version, kept.made)
            for place, kept in self._versions.items()
        )

    def retain_versions(self, wanted: Callable[[int, int, int], bool]) -> None:
        """Forget all but the wanted (version, first layer, last layer)."""
        self._versions = {place: kept for place, kept in self._versions.items() if wanted(*place)}

    def retain_terms(self, counts: Callable[[int, int], bool]) -> None:
        """Forget all that does not count: versions that a term made, by (version, term)."""
        self._versions = {place: kept for place, kept in self._versions.items() if counts(place.version, kept.made)}

    def receive_chunk(self, sender: str, replica: Replica) -> list[Payload] | None:
        """Take in a piece of a copy; the pieces once all are there."""
        place = _VersionKey(replica.version, replica.first, replica.last)
        pieces = self._incoming.setdefault((sender, place), {})
        pieces[replica.place] = replica.payload
        self._limit_incoming(sender)
        if len(pieces) < replica.count:
            return None
        self._incoming = {key: kept for key, kept in self._incoming.items() if not _is_superseded(key, sender, place)}
        return [pieces[number] for number in range(replica.count)]

    def _limit_incoming(self, sender: str) -> None:
        """Whoever begins copies without end loses the oldest."""
        begun = [key for key in self._incoming if key[0] == sender]
        for key in sorted(begun, key=lambda key: key[1])[:-_MOST_ARRIVING]:
            del self._incoming[key]

    def drop_incoming(self) -> None:
        self._incoming.clear()


def _is_superseded(key: tuple[str, _VersionKey], sender: str, place: _VersionKey) -> bool:
    """Whether it is the same or an older version of the same layers, of which a piece may have been lost."""
    return key[0] == sender and key[1][1:] == place[1:] and key[1].version <= place.version

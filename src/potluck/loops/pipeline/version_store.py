"""The versions of layers that a device holds: its own, copies for neighbours, and those of earlier layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from potluck.loops.pipeline.layer_sources import HeldLayers
from potluck.loops.pipeline.messages import Assign, Replica
from potluck.loops.pipeline.settings import Pipeline
from potluck.payload import Payload

__all__ = ["StageVersions", "VersionStore"]

_MAX_INCOMING = 64  # incomplete copies from one sender
_STEPS_KEPT = 3


class _VersionKey(NamedTuple):
    version: int
    first: int
    last: int


class _StoredVersion(NamedTuple):
    made: int
    weights: Any


class _IncomingCopy(NamedTuple):
    chunk_count: int
    step: bool
    chunks: dict[int, Payload]


class VersionStore:
    """All versions on one device, by number and layers."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._versions: dict[_VersionKey, _StoredVersion] = {}
        self._incoming: dict[tuple[str, _VersionKey], _IncomingCopy] = {}

    def add_version(self, version: int, made: int, first: int, last: int, weights: Any) -> None:
        self._versions[_VersionKey(version, first, last)] = _StoredVersion(made, weights)

    def find_covering(self, version: int, first: int, last: int) -> Any | None:
        """Weights of this version that cover these layers."""
        for key, kept in self._versions.items():
            if key.version == version and key.first <= first and last <= key.last:
                return kept.weights
        return None

    def has_version(self, version: int, made: int, first: int, last: int) -> bool:
        """Whether the device holds these layers in this version, made in this term."""
        return any(
            (key.version, kept.made) == (version, made) and key.first <= first and last <= key.last
            for key, kept in self._versions.items()
        )

    def find_exact(self, version: int, first: int, last: int) -> Any | None:
        """Weights of this version for exactly these layers."""
        kept = self._versions.get(_VersionKey(version, first, last))
        return None if kept is None else kept.weights

    def list_held(self) -> tuple[HeldLayers, ...]:
        return tuple(
            HeldLayers(self._device, key.first, key.last, key.version, kept.made)
            for key, kept in self._versions.items()
        )

    def retain_versions(self, wanted: Callable[[int, int, int], bool]) -> None:
        """Drop all but the wanted (version, first layer, last layer)."""
        self._versions = {key: kept for key, kept in self._versions.items() if wanted(*key)}

    def retain_terms(self, counts: Callable[[int, int], bool]) -> None:
        """Drop the versions that do not count, given each version and the term that made it."""
        self._versions = {key: kept for key, kept in self._versions.items() if counts(key.version, kept.made)}

    def receive_chunk(self, sender: str, replica: Replica) -> list[Payload] | None:
        """Store a chunk of a copy; all its chunks once they are complete."""
        copy = _VersionKey(replica.version, replica.first, replica.last)
        known = self._incoming.get((sender, copy))
        if known is None or (known.chunk_count, known.step) != (replica.count, replica.step):
            known = self._incoming[sender, copy] = _IncomingCopy(replica.count, replica.step, {})
        chunks = known.chunks
        chunks[replica.place] = replica.payload
        self._limit_incoming(sender)
        if len(chunks) < replica.count or not all(index in chunks for index in range(replica.count)):
            return None
        self._incoming = {key: kept for key, kept in self._incoming.items() if not _is_superseded(key, sender, copy)}
        return [chunks[index] for index in range(replica.count)]

    def _limit_incoming(self, sender: str) -> None:
        """Drop a sender's oldest incomplete copies, so that it cannot fill the memory."""
        begun = [key for key in self._incoming if key[0] == sender]
        for key in sorted(begun, key=lambda key: key[1])[:-_MAX_INCOMING]:
            del self._incoming[key]

    def drop_incoming(self) -> None:
        self._incoming.clear()


class StageVersions:
    """The versions of a stage's own layers in one term.

    Older ones are kept while a batch in flight, the average of versions, a copy or a rollback may need them.
    """

    def __init__(self, store: VersionStore, settings: Pipeline, assign: Assign, stage: int, layers: range) -> None:
        self._store = store
        self._schedule = settings.schedule
        self._strides = [stride for stride in (assign.stride, settings.replication.central_stride()) if stride]
        self._layers = (layers[0], layers[-1])
        self._window = settings.schedule.window_batches(assign.windows[stage])
        self._term, self._start_made_in_term = assign.term, assign.made
        self.start = self.applied = assign.version
        self.weights: dict[int, Any] = {}  # by version
        self.steps: dict[int, tuple[Any, Any]] = {}  # the gradient and the buffers that led to a version
        self.forward_version = assign.version  # that the latest forward pass used
        self._secure_version = assign.version

    @property
    def newest(self) -> Any:
        return self.weights[self.applied]

    def term_that_made(self, version: int) -> int:
        return self._term if version > self.start else self._start_made_in_term

    def store_version(self, weights: Any) -> None:
        """Store the weights of the applied version."""
        self.weights[self.applied] = weights
        self._store.add_version(self.applied, self.term_that_made(self.applied), *self._layers, weights)

    def averaged_versions(self) -> range:
        """The older versions that go into the average with the newest."""
        return range(max(self.start, self.applied - self._window + 1), self.applied)

    def set_secure_version(self, version: int) -> None:
        self._secure_version = max(self._secure_version, version)
        self.drop_unneeded()

    def drop_unneeded(self) -> None:
        """Drop the versions that nothing can ask for any more."""
        used = self.forward_version if self._schedule.vertical_sync else self.applied
        averaged = self.applied - self._window + 1 if self._schedule.aggregate else self.applied
        oldest = min(used, averaged)
        self.weights = {
            version: weights
            for version, weights in self.weights.items()
            if version >= oldest or (version >= self._secure_version and self._is_copied(version))
        }
        self.steps = {version: step for version, step in self.steps.items() if version > self.applied - _STEPS_KEPT}
        self._store.retain_versions(
            lambda version, *layers: layers != self._layers or version <= self.start or version in self.weights
        )

    def _is_copied(self, version: int) -> bool:
        return version == self.start or any(version % stride == 0 for stride in self._strides)


def _is_superseded(key: tuple[str, _VersionKey], sender: str, copy: _VersionKey) -> bool:
    """Whether a copy is of the same or an older version of the same layers; a chunk of it may be lost."""
    return key[0] == sender and key[1][1:] == copy[1:] and key[1].version <= copy.version

"""The conditions between two nodes: the real network alone, or the emulated links and faults of a fleet file.

Shaping happens in Potluck's own transport and needs no root: a sender holds every chunk until both its own link and the
peer's would have taken it; a receiver, whose link several senders may fill at once, does the same for what arrives;
small messages wait for the latency. A cut link drops everything, a lossy one whole messages, drawn from the run's seed.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from potluck import seeds
from potluck.fleet import Fleet, FleetChange, Link, fleet_changes
from potluck.loops.messages import Message
from potluck.loops.node import COORDINATOR

__all__ = ["CHUNK_BYTES", "LinkConditions", "ShapedLinks", "ShapedPipe", "TransmissionTimes"]

CHUNK_BYTES = 1 << 20
_MIN_CHUNK = 4 << 10
_CHUNK_S = 0.01  # duration of a chunk on a shaped link; shorter chunks share a link more evenly
_MAX_DRAW_COUNTS = 4096


class TransmissionTimes(NamedTuple):
    """When a link takes the first and last byte of a chunk."""

    started_at: float
    finished_at: float


class LinkConditions:
    """The real network without shaping."""

    def max_chunk_bytes(self, to: str) -> int:
        return CHUNK_BYTES

    def is_cut(self, other: str) -> bool:
        return False

    def latency_s(self, other: str) -> float:
        """One-way latency to add to the real one."""
        return 0.0

    def overhead_s(self, to: str) -> float:
        return 0.0

    def schedule_send(self, to: str, nbytes: int, ready: float) -> TransmissionTimes | None:
        """When the link takes bytes that are available since `ready`; None: immediately."""
        return None

    def schedule_receive(self, nbytes: int, started_at: float) -> float:
        """When this node's link has received bytes whose transmission started at `started_at`; 0: immediately."""
        return 0.0

    def drops_message(self, sender: str, message: Message) -> bool:
        return False


class ShapedPipe:
    """One direction of a link; transmits one chunk at a time."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.free_at = 0.0

    def reserve_slot(self, start: float, nbytes: int, bandwidth_fraction: float = 1.0) -> TransmissionTimes:
        started_at = max(start, self.free_at)
        self.free_at = started_at + nbytes / (self.rate * bandwidth_fraction)
        return TransmissionTimes(started_at, self.free_at)


class ShapedLinks(LinkConditions):
    """The links of a fleet as `name` sees them."""

    def __init__(self, fleet: Fleet, seed: int, name: str, now: Callable[[], float]) -> None:
        self._links = {device.name: device.link for device in fleet.members}
        self._links[COORDINATOR] = fleet.coordinator.resolved_link
        self._seed = seed
        self._name = name
        self._now = now
        self._own_link = self._links[name]
        self._up, self._down = ShapedPipe(self._own_link.up), ShapedPipe(self._own_link.down)
        self._peer_pipes: dict[str, ShapedPipe] = {}  # peers' down links, as far as this node fills them
        self._changes, _ = fleet_changes(fleet, self._fleet_rng)
        self._next_change: FleetChange | None = next(self._changes, None)
        self._cuts: Counter[str] = Counter()
        self._loss_fractions: dict[str, list[float]] = {
            name: [link.loss] * (link.loss > 0) for name, link in self._links.items()
        }
        self._bandwidth_fractions: dict[str, float] = {}
        self._draw_counts: OrderedDict[tuple[object, ...], int] = OrderedDict()
        self._lock = threading.RLock()

    def max_chunk_bytes(self, to: str) -> int:
        rate = min(self._own_link.up, self._links[to].down)
        return int(max(_MIN_CHUNK, min(CHUNK_BYTES, rate * _CHUNK_S)))

    def is_cut(self, other: str) -> bool:
        with self._lock:
            self._apply_due_changes()
            return self._cuts[self._name] > 0 or self._cuts[other] > 0

    def latency_s(self, other: str) -> float:
        return float(self._own_link.latency + self._link_of(other).latency)

    def overhead_s(self, to: str) -> float:
        return float(self._own_link.overhead + self._link_of(to).overhead)

    def schedule_send(self, to: str, nbytes: int, ready: float) -> TransmissionTimes | None:
        with self._lock:
            self._apply_due_changes()
            peer_pipe = self._peer_pipes.setdefault(to, ShapedPipe(self._link_of(to).down))
            started_at, own_done = self._up.reserve_slot(ready, nbytes, self._bandwidth_fraction(self._name))
            return TransmissionTimes(
                started_at,
                max(own_done, peer_pipe.reserve_slot(started_at, nbytes, self._bandwidth_fraction(to)).finished_at),
            )

    def schedule_receive(self, nbytes: int, started_at: float) -> float:
        with self._lock:
            return self._down.reserve_slot(started_at, nbytes, self._bandwidth_fraction(self._name)).finished_at

    def drops_message(self, sender: str, message: Message) -> bool:
        """Drawn from the message and how often it arrived, so that runs with the same seed lose the same messages."""
        with self._lock:
            self._apply_due_changes()
            fractions = (*self._loss_fractions[sender], *self._loss_fractions[self._name])
            if not fractions:
                return False
            identity = (sender, type(message).__name__, getattr(message, "turn", 0), getattr(message, "first", 0))
            count = self._draw_counts.pop(identity, 0)
            self._draw_counts[identity] = count + 1
            if len(self._draw_counts) > _MAX_DRAW_COUNTS:
                self._draw_counts.popitem(last=False)
            draws = [
                seeds.child_seed(self._seed, "loss", self._name, *identity, count, cause)
                for cause in range(len(fractions))
            ]
        return any(draw < fraction * 2**63 for draw, fraction in zip(draws, fractions, strict=True))

    def _link_of(self, name: str) -> Link:
        return self._links[name]

    def _bandwidth_fraction(self, name: str) -> float:
        return self._bandwidth_fractions.get(name, 1.0)

    def _fleet_rng(self, name: str) -> np.random.Generator:
        return seeds.child_generator(self._seed, "fleet", name)

    def _apply_due_changes(self) -> None:
        """Apply the fleet's changes up to now."""
        now = self._now()
        while self._next_change is not None and self._next_change.at <= now:
            self._apply_change(self._next_change)
            self._next_change = next(self._changes, None)

    def _apply_change(self, change: FleetChange) -> None:
        match change.what:
            case "link":
                self._cuts[change.device] += 1 if change.value == 0 else -1
            case "lose" if change.value > 0:
                self._loss_fractions[change.device].append(change.value)
            case "lose":
                self._loss_fractions[change.device].remove(-change.value)
            case "bandwidth":
                self._bandwidth_fractions[change.device] = change.value

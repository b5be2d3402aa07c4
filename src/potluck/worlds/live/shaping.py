"""What is between two nodes: nothing but the real network, or the links and faults of a fleet file, acted out.

Shaping happens in our own transport and needs no root: a sender holds every chunk until both its own link and the far
one would have taken it; a receiver, whose link many may fill at once, does the same with what comes in; small messages
wait for the latency. A cut link drops all, a lossy one whole messages, drawn from the run's seed.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from potluck import seeds
from potluck.fleet import Change, Fleet, Link, script
from potluck.loops.messages import Message
from potluck.loops.node import COORDINATOR

__all__ = ["CHUNK_BYTES", "Conditions", "Pipe", "Shaped", "Taken"]

CHUNK_BYTES = 1 << 20
_LEAST_CHUNK = 4 << 10
_CHUNK_SECONDS = 0.01  # what a chunk takes on a shaped link; shorter ones share a link more evenly
_REMEMBERED = 4096


class Taken(NamedTuple):
    """When a link takes the first and the last byte of a chunk."""

    begun: float
    taken: float


class Conditions:
    """The real network and nothing else."""

    def chunk_bytes(self, to: str) -> int:
        return CHUNK_BYTES

    def is_cut(self, other: str) -> bool:
        return False

    def latency(self, other: str) -> float:
        """One way, on top of the real one."""
        return 0.0

    def overhead(self, to: str) -> float:
        return 0.0

    def take(self, to: str, nbytes: int, ready: float) -> Taken | None:
        """Put bytes on the link that are there since `ready`: when it has taken them; None for at once."""
        return None

    def drain(self, nbytes: int, begun: float) -> float:
        """When our own link has taken in what another began to send; 0 for at once."""
        return 0.0

    def loses(self, sender: str, message: Message) -> bool:
        return False


class Pipe:
    """One direction of a link: takes one thing after the other."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.free_at = 0.0

    def take(self, start: float, nbytes: int, level: float = 1.0) -> Taken:
        begun = max(start, self.free_at)
        self.free_at = begun + nbytes / (self.rate * level)
        return Taken(begun, self.free_at)


class Shaped(Conditions):
    """The links of a fleet as `name` sees them."""

    def __init__(self, fleet: Fleet, seed: int, name: str, now: Callable[[], float]) -> None:
        self._links = {device.name: device.link for device in fleet.members}
        self._links[COORDINATOR] = fleet.coordinator.access
        self._seed = seed
        self._name = name
        self._now = now
        self._own = self._links[name]
        self._up, self._down = Pipe(self._own.up), Pipe(self._own.down)
        self._far: dict[str, Pipe] = {}  # the other side's link, as far as we fill it
        self._changes, _ = script(fleet, self._rng)
        self._coming: Change | None = next(self._changes, None)
        self._cuts: Counter[str] = Counter()
        self._lose: dict[str, list[float]] = {name: [link.loss] * (link.loss > 0) for name, link in self._links.items()}
        self._levels: dict[str, float] = {}
        self._drawn: OrderedDict[tuple[object, ...], int] = OrderedDict()
        self._lock = threading.RLock()

    def chunk_bytes(self, to: str) -> int:
        rate = min(self._own.up, self._links[to].down)
        return int(max(_LEAST_CHUNK, min(CHUNK_BYTES, rate * _CHUNK_SECONDS)))

    def is_cut(self, other: str) -> bool:
        with self._lock:
            self._follow()
            return self._cuts[self._name] > 0 or self._cuts[other] > 0

    def latency(self, other: str) -> float:
        return float(self._own.latency + self._link(other).latency)

    def overhead(self, to: str) -> float:
        return float(self._own.overhead + self._link(to).overhead)

    def take(self, to: str, nbytes: int, ready: float) -> Taken | None:
        with self._lock:
            self._follow()
            far = self._far.setdefault(to, Pipe(self._link(to).down))
            begun, own = self._up.take(ready, nbytes, self._level(self._name))
            return Taken(begun, max(own, far.take(begun, nbytes, self._level(to)).taken))

    def drain(self, nbytes: int, begun: float) -> float:
        with self._lock:
            return self._down.take(begun, nbytes, self._level(self._name)).taken

    def loses(self, sender: str, message: Message) -> bool:
        """Drawn from the message and how often it came, so that a run with the same seed loses the same ones."""
        with self._lock:
            self._follow()
            shares = (*self._lose[sender], *self._lose[self._name])
            if not shares:
                return False
            what = (sender, type(message).__name__, getattr(message, "turn", 0), getattr(message, "first", 0))
            times = self._drawn.pop(what, 0)
            self._drawn[what] = times + 1
            if len(self._drawn) > _REMEMBERED:
                self._drawn.popitem(last=False)
            draws = [seeds.child(self._seed, "loss", self._name, *what, times, cause) for cause in range(len(shares))]
        return any(draw < share * 2**63 for draw, share in zip(draws, shares, strict=True))

    def _link(self, name: str) -> Link:
        return self._links[name]

    def _level(self, name: str) -> float:
        return self._levels.get(name, 1.0)

    def _rng(self, name: str) -> np.random.Generator:
        return seeds.generator(self._seed, "fleet", name)

    def _follow(self) -> None:
        """Bring the script up to now."""
        now = self._now()
        while self._coming is not None and self._coming.at <= now:
            self._apply(self._coming)
            self._coming = next(self._changes, None)

    def _apply(self, change: Change) -> None:
        match change.what:
            case "link":
                self._cuts[change.device] += 1 if change.value == 0 else -1
            case "lose" if change.value > 0:
                self._lose[change.device].append(change.value)
            case "lose":
                self._lose[change.device].remove(-change.value)
            case "bandwidth":
                self._levels[change.device] = change.value

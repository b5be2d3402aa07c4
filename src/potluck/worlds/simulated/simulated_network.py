"""The network of a simulated fleet: queued transfers that share links max-min fairly.

    sender ──▶ [channel: one transfer at a time] ──▶ sender's up pipe ──▶ receiver's down pipe ──▶ latency ──▶

Two nodes have one channel in each direction, as they would have one connection: it carries one transfer at a time,
and each pays the link's overhead first. Transfers of different channels share every pipe they cross max-min fairly,
so the coordinator's link is divided among all its users. Messages without a payload skip the queue: they pay only
latency and their few bytes.

Transfers are ordered by the keys of their channels, not by arrival: transfers that finish at the same instant finish
in that order, and sums are rounded the same way, so a resumed run matches an uninterrupted one bit for bit.
"""

from __future__ import annotations

import asyncio
import bisect
import math
from collections import deque
from collections.abc import Callable

import numpy as np

__all__ = ["SimulatedChannel", "SimulatedNetwork", "SimulatedPipe", "SimulatedTransfer", "fair_rates"]

_SAME_INSTANT = 1e-12


class SimulatedPipe:
    """One direction of one node's link; it has a slot in the network's tables while a transfer uses it."""

    __slots__ = ("capacity", "slot", "users")

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.slot = -1
        self.users = 0


class SimulatedTransfer:
    """Bytes on a channel, queued or in flight."""

    __slots__ = ("channel", "in_flight", "nbytes", "on_done", "started_at")

    def __init__(self, channel: SimulatedChannel, nbytes: float, on_done: Callable[[bool], object]) -> None:
        self.channel = channel
        self.nbytes = nbytes
        self.on_done = on_done
        self.in_flight = False
        self.started_at = 0.0  # when the channel began with it


class SimulatedChannel:
    """Carries the transfers from one node to another, one at a time."""

    __slots__ = ("active", "down", "key", "network", "overhead", "queue", "up")

    def __init__(
        self, network: SimulatedNetwork, key: int, up: SimulatedPipe, down: SimulatedPipe, overhead: float
    ) -> None:
        self.network = network
        self.key = key
        self.up = up
        self.down = down
        self.overhead = overhead
        self.queue: deque[SimulatedTransfer] = deque()
        self.active: SimulatedTransfer | None = None

    def queue_transfer(self, nbytes: float, on_done: Callable[[bool], object]) -> SimulatedTransfer:
        """Queue a transfer; calls `on_done(True)` when its last byte was sent, `on_done(False)` if it was lost."""
        transfer = SimulatedTransfer(self, nbytes, on_done)
        self.queue.append(transfer)
        if self.active is None:
            self._start_next()
        return transfer

    def cancel_transfer(self, transfer: SimulatedTransfer) -> None:
        """Drop a transfer that the sender no longer wants."""
        if transfer is self.active:
            if transfer.in_flight:
                self.network.remove_transfer(transfer)
            self._start_next()
        elif transfer in self.queue:
            self.queue.remove(transfer)

    def drop_transfers(self) -> None:
        """Break the connection: everything queued or in flight is lost."""
        lost = ([self.active] if self.active else []) + list(self.queue)
        if self.active is not None and self.active.in_flight:
            self.network.remove_transfer(self.active)
        self.queue.clear()
        self.active = None
        for transfer in lost:
            transfer.on_done(False)

    def _start_next(self) -> None:
        self.active = self.queue.popleft() if self.queue else None
        if self.active is None:
            return
        loop = asyncio.get_running_loop()
        self.active.started_at = loop.time()
        if self.overhead > 0:
            loop.call_later(self.overhead, self._begin_transfer, self.active)
        else:
            self._begin_transfer(self.active)

    def _begin_transfer(self, transfer: SimulatedTransfer) -> None:
        if self.active is transfer:  # otherwise the connection broke during the overhead
            self.network.add_transfer(transfer)

    def finish_transfer(self, transfer: SimulatedTransfer) -> None:
        self.active = None
        transfer.on_done(True)
        if self.active is None:
            self._start_next()


class SimulatedNetwork:
    """All transfers in flight and their rates, which change when a transfer starts or ends or a pipe is resized."""

    def __init__(self) -> None:
        self._capacity = np.zeros(64)
        self._free_slots = list(range(63, -1, -1))
        self._transfers: list[SimulatedTransfer] = []
        self._keys: list[int] = []
        self._up = np.zeros(64, dtype=np.intp)
        self._down = np.zeros(64, dtype=np.intp)
        self._left = np.zeros(64)
        self._rate = np.zeros(64)
        self._since = 0.0
        self._timer: asyncio.Handle | None = None
        self._dirty = False

    def resize_pipe(self, pipe: SimulatedPipe, capacity: float) -> None:
        """Change a pipe's capacity from now on."""
        pipe.capacity = capacity
        if pipe.users:
            self._advance_transfers()
            self._capacity[pipe.slot] = capacity
            self._schedule_update()

    def add_transfer(self, transfer: SimulatedTransfer) -> None:
        self._advance_transfers()
        count, channel = len(self._transfers), transfer.channel
        if count == len(self._left):
            self._grow_tables()
        index = bisect.bisect_left(self._keys, channel.key)
        for array in (self._up, self._down, self._left, self._rate):
            array[index + 1 : count + 1] = array[index:count]
        self._keys.insert(index, channel.key)
        self._transfers.insert(index, transfer)
        transfer.in_flight = True
        self._up[index] = self._occupy_pipe(channel.up)
        self._down[index] = self._occupy_pipe(channel.down)
        self._left[index] = transfer.nbytes
        self._rate[index] = 0.0
        self._schedule_update()

    def remove_transfer(self, transfer: SimulatedTransfer) -> None:
        self._advance_transfers()
        count, channel = len(self._transfers), transfer.channel
        index = bisect.bisect_left(self._keys, channel.key)
        for array in (self._up, self._down, self._left, self._rate):
            array[index : count - 1] = array[index + 1 : count]
        del self._keys[index], self._transfers[index]
        transfer.in_flight = False
        self._release_pipe(channel.up)
        self._release_pipe(channel.down)
        self._schedule_update()

    def _occupy_pipe(self, pipe: SimulatedPipe) -> int:
        if pipe.users == 0:
            if not self._free_slots:
                size = len(self._capacity)
                self._capacity = np.concatenate([self._capacity, np.zeros(size)])
                self._free_slots = list(range(2 * size - 1, size - 1, -1))
            pipe.slot = self._free_slots.pop()
            self._capacity[pipe.slot] = pipe.capacity
        pipe.users += 1
        return pipe.slot

    def _release_pipe(self, pipe: SimulatedPipe) -> None:
        pipe.users -= 1
        if pipe.users == 0:
            self._free_slots.append(pipe.slot)

    def _grow_tables(self) -> None:
        for name in ("_up", "_down", "_left", "_rate"):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros_like(array)]))

    def _advance_transfers(self) -> None:
        """Update the remaining bytes of each transfer to the present time."""
        now = asyncio.get_running_loop().time()
        count = len(self._transfers)
        if count and now > self._since:
            self._left[:count] -= self._rate[:count] * (now - self._since)
        self._since = now

    def _schedule_update(self) -> None:
        """Recompute the rates once for all changes of this instant."""
        if not self._dirty:
            self._dirty = True
            asyncio.get_running_loop().call_soon(self._update_rates)

    def _update_rates(self) -> None:
        self._dirty = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        count = len(self._transfers)
        if count == 0:
            return
        rate = fair_rates(self._up[:count], self._down[:count], self._capacity)
        self._rate[:count] = rate
        wait = float(_remaining_s(self._left[:count], rate).min())
        if not math.isinf(wait):
            self._timer = asyncio.get_running_loop().call_later(max(wait, 0.0), self._finish_due)

    def _finish_due(self) -> None:
        """Finish the transfers whose last byte is due."""
        self._timer = None
        if self._dirty:
            return  # something changed at this instant; the rates are about to be recomputed
        self._advance_transfers()
        count = len(self._transfers)
        seconds = _remaining_s(self._left[:count], self._rate[:count])
        finished = np.flatnonzero(seconds <= max(float(seconds.min()), 0.0) + _SAME_INSTANT)
        for transfer in [self._transfers[index] for index in finished]:
            self.remove_transfer(transfer)
            transfer.channel.finish_transfer(transfer)


def _remaining_s(left: np.ndarray, rate: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(left > 0, left / rate, 0.0)


def fair_rates(up: np.ndarray, down: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Max-min fair rates of transfers that each cross one up and one down pipe.

    Progressive filling: a pipe whose equal split is the lowest rate for every transfer it carries fixes their rates;
    capacity they leave elsewhere goes to the others. All such pipes are fixed in one pass, so a star of uneven devices
    needs few passes.
    """
    rate = np.zeros(len(up))
    if len(up) == 1:
        rate[0] = min(capacity[up[0]], capacity[down[0]])
        return rate
    left = capacity.copy()
    unlimited = np.isinf(capacity)
    open_ = np.ones(len(up), dtype=bool)
    while open_.any():
        ups, downs = up[open_], down[open_]
        users = np.bincount(ups, minlength=len(left)) + np.bincount(downs, minlength=len(left))
        with np.errstate(divide="ignore", invalid="ignore"):
            fair_rate = np.where(users > 0, left / users, np.inf)
        bound = np.minimum(fair_rate[ups], fair_rate[downs])
        tight = np.ones(len(left), dtype=bool)  # pipes that are the bottleneck of every transfer they carry
        tight[ups[fair_rate[ups] > bound]] = False
        tight[downs[fair_rate[downs] > bound]] = False
        fixed = tight[ups] | tight[downs]
        indices = np.flatnonzero(open_)[fixed]
        rate[indices] = bound[fixed]
        with np.errstate(invalid="ignore"):
            np.subtract.at(left, up[indices], rate[indices])
            np.subtract.at(left, down[indices], rate[indices])
        np.maximum(left, 0.0, out=left)
        left[unlimited] = np.inf
        open_[indices] = False
    return rate

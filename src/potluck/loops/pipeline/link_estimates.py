"""Estimates the bandwidth between devices from the messages that stages exchange, as their receivers saw them.

A device reports, with each batch, the largest message of every other device and how long its link was busy with it.
Messages that arrive at the same time share the receiver's link, so the time they overlap counts in parts.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from potluck.fleet import Device
from potluck.loops.node import MeasuredTransfer
from potluck.planning.online_estimates import ChangeDetector

__all__ = ["LinkEstimates", "ReceptionLog", "ReportedTransfer"]

_LOGGED = 32  # newest messages, whose overlap is known
_OBSERVED = 12  # newest messages of a pair of devices that count
_LEAST_BYTES = 1024
_SLOW_FRACTION = 0.5  # of a link's nominal bandwidth
_LEAST_OVERHEADS = 2.0  # times a link's overhead: a shorter message says little about the bandwidth

ReportedTransfer = tuple[str, int, float]  # the sender, bytes, seconds


class _Reception(NamedTuple):
    sender: str
    nbytes: int
    start: float
    end: float


class ReceptionLog:
    """A device's side: which messages it has received, and when."""

    def __init__(self) -> None:
        self._receptions: deque[_Reception] = deque(maxlen=_LOGGED)
        self._largest: dict[str, _Reception] = {}  # by sender, since the last report

    def record_message(self, sender: str, transfer: MeasuredTransfer | None, now: float) -> None:
        """A message has arrived now."""
        if transfer is None or transfer.nbytes < _LEAST_BYTES or not 0 < transfer.seconds < math.inf:
            return
        reception = _Reception(sender, transfer.nbytes, now - transfer.seconds, now)
        self._receptions.append(reception)
        if sender not in self._largest or self._largest[sender].nbytes <= transfer.nbytes:
            self._largest[sender] = reception

    def take_transfers(self) -> tuple[ReportedTransfer, ...]:
        """The largest message of each sender since the last call, with the seconds it took of the receiver's link."""
        largest, self._largest = self._largest, {}
        return tuple((each.sender, each.nbytes, self._own_seconds(each)) for each in largest.values())

    def _own_seconds(self, reception: _Reception) -> float:
        overlaps = [
            min(reception.end, other.end) - max(reception.start, other.start)
            for other in self._receptions
            if other is not reception
        ]
        shared = [overlap for overlap in overlaps if overlap > 0]
        seconds = reception.end - reception.start
        return max(seconds - sum(shared) / 2, seconds / (1 + len(shared)))


class LinkEstimates:
    """The coordinator's side: the bandwidth of every pair of devices, nominal until it is observed."""

    def __init__(self, fleet: Mapping[str, Device]) -> None:
        self._devices = fleet
        self._rates: dict[tuple[str, str], deque[float]] = {}  # bytes per second
        self._change_detectors: dict[tuple[str, str], ChangeDetector] = {}
        # Derived from the rates until one changes: a plan asks for thousands of bandwidths.
        self._bandwidths: dict[tuple[str, str], float] = {}
        self._slow_devices: dict[str, float] | None = None

    def observe_transfers(self, receiver: str, transfers: Iterable[ReportedTransfer]) -> bool:
        """Learn from what a device has received; whether a bandwidth has changed."""
        changed = [self._observe_transfer(receiver, *transfer) for transfer in transfers]
        return any(changed)

    def bandwidth(self, sender: str, receiver: str) -> float:
        """Bytes per second; nominal for a pair that was not observed, unless one of them has a slow link."""
        pair = (sender, receiver)
        if pair not in self._bandwidths:
            self._bandwidths[pair] = self._derive_bandwidth(pair)
        return self._bandwidths[pair]

    def _derive_bandwidth(self, pair: tuple[str, str]) -> float:
        if rates := self._rates.get(pair):
            return _upper_quartile(rates)
        slow = self.slow_devices()
        return min(slow.get(name, 1.0) for name in pair) * self._nominal(*pair)

    def transfer_s(self, sender: str, receiver: str, nbytes: float) -> float:
        """Seconds that a message of this size takes."""
        return float(nbytes / self.bandwidth(sender, receiver) + self._overhead_s(sender, receiver))

    def forget_device(self, device: str) -> None:
        """Drop what is known of a device's links; it may return as another machine."""
        for pair in [pair for pair in self._rates if device in pair]:
            del self._rates[pair]
            self._change_detectors.pop(pair, None)
        self._drop_derived()

    def _drop_derived(self) -> None:
        self._bandwidths.clear()
        self._slow_devices = None

    def _observe_transfer(self, receiver: str, sender: str, nbytes: int, seconds: float) -> bool:
        if sender not in self._devices or sender == receiver or nbytes < _LEAST_BYTES:
            return False
        overhead_s = self._overhead_s(sender, receiver)
        if not seconds > _LEAST_OVERHEADS * overhead_s:
            return False
        pair, rate = (sender, receiver), nbytes / (seconds - overhead_s)
        detector = self._change_detectors.setdefault(pair, ChangeDetector())
        has_changed = detector.detect_change(self.bandwidth(sender, receiver), rate)
        rates = self._rates.setdefault(pair, deque(maxlen=_OBSERVED))
        if has_changed:
            rates.clear()
        rates.append(rate)
        self._drop_derived()
        return has_changed

    def slow_devices(self) -> dict[str, float]:
        """The fewest devices that explain the slow pairs, each with the fraction of nominal that its best pair has."""
        if self._slow_devices is None:
            self._slow_devices = self._find_slow_devices()
        return self._slow_devices

    def _find_slow_devices(self) -> dict[str, float]:
        fractions = {pair: _upper_quartile(rates) / self._nominal(*pair) for pair, rates in self._rates.items()}
        unexplained = [pair for pair, fraction in fractions.items() if fraction < _SLOW_FRACTION]
        slow: dict[str, float] = {}
        while unexplained:
            (device, _), *_ = Counter(name for pair in unexplained for name in pair).most_common(1)
            slow[device] = max(fraction for pair, fraction in fractions.items() if device in pair)
            unexplained = [pair for pair in unexplained if device not in pair]
        return slow

    def _nominal(self, sender: str, receiver: str) -> float:
        return float(min(self._devices[sender].link.up, self._devices[receiver].link.down))

    def _overhead_s(self, sender: str, receiver: str) -> float:
        return float(self._devices[sender].link.overhead + self._devices[receiver].link.overhead)


def _upper_quartile(rates: deque[float]) -> float:
    return statistics.quantiles(rates, n=4, method="inclusive")[2] if len(rates) > 1 else rates[0]

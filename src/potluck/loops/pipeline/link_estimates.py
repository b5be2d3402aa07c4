"""Estimates the bandwidth between devices from the messages that stages exchange, as their receivers saw them.

A device reports, with each batch, the largest message of every other device and how long its link was busy with its
bytes: without the overhead of an emulated link, and with nothing subtracted on a real one. Messages that arrive at the
same time share the receiver's link, so the time they overlap counts in parts.

A message whose bytes take no longer than the overhead that the fleet file gives the link is short: what delays it says
little about the bandwidth, so it is never evidence of a slower link. It is evidence of a faster one, where it is large
enough that no token bucket lets it through at once.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from potluck.fleet import Device
from potluck.loops.node import MeasuredTransfer
from potluck.planning.online_estimates import MAX_DEVIATION, ChangeDetector

__all__ = ["LinkEstimates", "ReceptionLog", "ReportedTransfer"]

_LOGGED = 32  # newest messages, whose overlap is known
_OBSERVED = 12  # newest messages of a pair of devices that count
_LEAST_BYTES = 1024
_SLOW_FRACTION = 0.5  # of a link's nominal bandwidth
_LEAST_SHORT_BYTES = 64 << 10  # of a short message that counts

ReportedTransfer = tuple[str, int, float]  # the sender, bytes, seconds


class _ObservedRate(NamedTuple):
    rate: float  # bytes per second
    is_short: bool  # whether a short message proved it


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
        if transfer is None or transfer.nbytes < _LEAST_BYTES:
            return
        seconds = transfer.seconds - transfer.overhead_s
        if not 0 < seconds < math.inf:
            return
        reception = _Reception(sender, transfer.nbytes, now - seconds, now)
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
        self._rates: dict[tuple[str, str], deque[_ObservedRate]] = {}
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
        if observed := self._rates.get(pair):
            return _upper_quartile(observed)
        return self._unobserved_rate(pair)

    def _unobserved_rate(self, pair: tuple[str, str]) -> float:
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
        if sender not in self._devices or sender == receiver or nbytes < _LEAST_BYTES or not seconds > 0:
            return False
        pair = sender, receiver
        observed = _ObservedRate(nbytes / seconds, seconds <= self._overhead_s(*pair))
        if observed.is_short:
            least = self._rate_of_long_messages(pair)
            if nbytes < _LEAST_SHORT_BYTES or not self._counts_short(pair, observed.rate, least):
                return False
            observed = observed._replace(rate=max(observed.rate, least))
        detector = self._change_detectors.setdefault(pair, ChangeDetector())
        has_changed = detector.detect_change(self.bandwidth(sender, receiver), observed.rate)
        rates = self._rates.setdefault(pair, deque(maxlen=_OBSERVED))
        if has_changed:
            rates.clear()
        rates.append(observed)
        self._drop_derived()
        return has_changed

    def _counts_short(self, pair: tuple[str, str], rate: float, least: float) -> bool:
        """Whether a short message counts: it proves the link much faster, or the estimate rests on such messages."""
        return rate > MAX_DEVIATION * least or any(each.is_short for each in self._rates.get(pair, ()))

    def _rate_of_long_messages(self, pair: tuple[str, str]) -> float:
        long = [each for each in self._rates.get(pair, ()) if not each.is_short]
        return _upper_quartile(long) if long else self._unobserved_rate(pair)

    def slow_devices(self) -> dict[str, float]:
        """The fewest devices that explain the slow pairs, each with the fraction of nominal that its best pair has."""
        if self._slow_devices is None:
            self._slow_devices = self._find_slow_devices()
        return self._slow_devices

    def _find_slow_devices(self) -> dict[str, float]:
        fractions = {pair: _upper_quartile(observed) / self._nominal(*pair) for pair, observed in self._rates.items()}
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


def _upper_quartile(observed: Sequence[_ObservedRate]) -> float:
    rates = [each.rate for each in observed]
    return statistics.quantiles(rates, n=4, method="inclusive")[2] if len(rates) > 1 else rates[0]

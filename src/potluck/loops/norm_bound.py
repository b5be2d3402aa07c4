"""Bounds the norm of updates, so that a single one, however long, cannot ruin the model.

    norms of recent updates ──▶ their median, each device counting once ──▶ the highest so far × norm_bound = bound
    an update within the bound is merged as it is; a longer one is scaled down to the recent median

Honest norms fall as a model converges, and single updates may then be as long as the first ones were: the bound never
falls. It rises with the median, which a minority of the devices cannot move. A device whose updates are over the bound
several times in a row is refused, unless many are: then something about the training has changed.

Fewer than three devices have no majority. The model's own norms then limit their first updates, the norm to which a
long one is scaled down, and how high the bound stays. Once there is a majority, nothing of this counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from potluck.model.update_merging import FULL_LENGTH, UpdateNorm

__all__ = ["NormBound", "NormHistory", "NormVerdict", "RecentNorm"]

_WINDOW = 64  # recent updates
_SETTLED = 8  # updates from which on a median is trusted for the rest of the run
_MAX_CLIPPED = 3  # updates of a device in a row that are scaled down; further ones are refused
_FEW_DEVICES = 3  # with fewer there is no majority
# How many times as long as the model the first updates count at most without a majority. Batch-norm statistics begin at
# 0 and 1, and their first updates may be far longer: the variance of 16-bit inputs that are not normalised is 65536².
_FIRST_TIMES = {"params": 1.0, "buffers": 65536.0**2}


class RecentNorm(msgspec.Struct, frozen=True, array_like=True):
    """The norm of an update, at most the bound that it was judged by."""

    device: str
    params: float
    buffers: float


def _zeros() -> dict[str, float]:
    return {"params": 0.0, "buffers": 0.0}


class NormHistory(msgspec.Struct):
    """The norms of recent updates; saved with every checkpoint."""

    recent: list[RecentNorm] = []
    highest: dict[str, float] = msgspec.field(default_factory=_zeros)  # medians so far, of a majority
    highest_of_few: dict[str, float] = msgspec.field(default_factory=_zeros)  # medians so far without a majority
    clipped: dict[str, int] = {}  # updates of a device in a row that were scaled down


class NormVerdict(NamedTuple):
    """What becomes of an update: factors to scale it by and, if it is over the bound, its norm and the bound."""

    scale: UpdateNorm = FULL_LENGTH
    norm: float = 0.0
    bound: float = 0.0

    @property
    def is_clipped(self) -> bool:
        return self.scale != FULL_LENGTH


class NormBound:
    """Judges updates by the history of a run; `multiple` is the setting.

    `longest` is what may be usual, by the model's own norms, where no majority of devices says it.
    """

    def __init__(self, multiple: float, history: NormHistory) -> None:
        self._multiple = multiple
        self._history = history
        self._medians = {name: _device_median(history.recent, name) for name in history.highest}

    @property
    def has_history(self) -> bool:
        """Whether there is anything to judge by; updates of zeros say nothing."""
        return self._bound("params", math.inf) > 0

    def judge_updates(self, norms: Sequence[tuple[str, UpdateNorm]], longest: UpdateNorm) -> list[NormVerdict]:
        """How to merge updates, by those before them, or by each other if they are the first; they then count too."""
        updates = [RecentNorm(device, *norm) for device, norm in norms]
        limits = {name: self._limit(name, updates, getattr(longest, name)) for name in self._medians}
        verdicts = [_verdict(norm, limits) for _, norm in norms]
        for (device, _), verdict in zip(norms, verdicts, strict=True):
            self._count_clipped(device, verdict)
        most = {name: limit.counted for name, limit in limits.items()}
        bounded = [
            RecentNorm(update.device, min(update.params, most["params"]), min(update.buffers, most["buffers"]))
            for update in updates
        ]
        self._remember([*self._history.recent, *bounded])
        return verdicts

    def judge_update(self, device: str, norm: UpdateNorm, longest: UpdateNorm) -> NormVerdict:
        """How to merge a single update."""
        (verdict,) = self.judge_updates([(device, norm)], longest)
        return verdict

    def refusal(self, device: str, norm: UpdateNorm, longest: UpdateNorm) -> str | None:
        """Why an update may not be merged at all; None if it may."""
        clipped, devices = self._history.clipped, {entry.device for entry in self._history.recent}
        offenders = sum(count >= _MAX_CLIPPED for count in clipped.values())
        if clipped.get(device, 0) < _MAX_CLIPPED or 2 * offenders >= len(devices | clipped.keys()):
            return None
        verdict = _verdict(norm, {name: self._limit(name, (), getattr(longest, name)) for name in self._medians})
        over = f"the norm of its update is {verdict.norm:.3g}, over the bound of {verdict.bound:.3g}"
        return f"{over} as those before it (rounds.norm_bound)" if verdict.is_clipped else None

    def _limit(self, name: str, updates: Sequence[RecentNorm], longest: float) -> _Limit:
        """The limit of parameters or of buffers, by the updates before these; by themselves if those say nothing."""
        bound, median = self._bound(name, longest), self._medians[name]
        if bound:
            few = _lacks_majority(self._history.recent, name)
            return _Limit(bound, min(median, longest) if few else median, bound)
        if not _lacks_majority(updates, name):
            median = _device_median(updates, name)
            return _Limit(self._multiple * median, median, self._multiple * median)
        most = longest * _FIRST_TIMES[name]
        median = _device_median(updates, name, most)
        return _Limit(self._multiple * median, min(median, longest), most)

    def _count_clipped(self, device: str, verdict: NormVerdict) -> None:
        if verdict.is_clipped:
            self._history.clipped[device] = self._history.clipped.get(device, 0) + 1
        else:
            self._history.clipped.pop(device, None)

    def _remember(self, recent: list[RecentNorm]) -> None:
        history = self._history
        history.recent = recent[-_WINDOW:]
        self._medians = {name: _device_median(history.recent, name) for name in self._medians}
        if len(recent) >= _SETTLED:
            for name, median in self._medians.items():
                highest = history.highest_of_few if _lacks_majority(history.recent, name) else history.highest
                highest[name] = max(median, highest[name])

    def _bound(self, name: str, longest: float) -> float:
        """The longest parameters or buffers that are merged as they are; 0 if there is nothing to go by."""
        usual = max(self._medians[name], self._history.highest[name])
        if _lacks_majority(self._history.recent, name):
            usual = max(usual, min(self._history.highest_of_few[name], longest))
        return self._multiple * usual


class _Limit(NamedTuple):
    """What parameters or buffers are judged by."""

    bound: float  # longer ones are scaled down; 0: none
    length: float  # to this norm
    counted: float  # and count as this long for the next ones, at most


def _verdict(norm: UpdateNorm, limits: Mapping[str, _Limit]) -> NormVerdict:
    verdict = NormVerdict()
    for name, value in norm._asdict().items():
        bound, length, _ = limits[name]
        if 0 < bound < value:
            scale = verdict.scale._replace(**{name: length / value})
            verdict = NormVerdict(scale, max(value, verdict.norm), bound if value > verdict.norm else verdict.bound)
    return verdict


def _lacks_majority(recent: Sequence[RecentNorm], name: str) -> bool:
    return len({entry.device for entry in recent if getattr(entry, name) > 0}) < _FEW_DEVICES


def _device_median(recent: Sequence[RecentNorm], name: str, most: float = math.inf) -> float:
    """The median of the norms above 0, each `most` at most and each device counting once; of two, the lower."""
    norms = sorted((min(value, most), entry.device) for entry in recent if (value := getattr(entry, name)) > 0)
    counts = Counter(device for _, device in norms)
    passed, half = 0.0, len(counts) / 2
    for value, device in norms:
        passed += 1 / counts[device]
        if passed >= half - 1e-9:
            return float(value)
    return 0.0

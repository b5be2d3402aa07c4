"""Bounds the norm of updates, so that a single one, however long, cannot ruin the model.

    norms of recent updates ──▶ their median, each device counting once ──▶ the highest so far × norm_bound = bound
    an update within the bound is merged as it is; a longer one is scaled down to the recent median

Honest norms fall as a model converges, and single updates may then be as long as the first ones were: the bound never
falls. It rises with the median, which a minority of the devices cannot move. A device whose updates are over the bound
several times in a row is refused, unless many are: then something about the training has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from potluck.model.update_merging import FULL_LENGTH, UpdateNorm

__all__ = ["NormBound", "NormHistory", "NormVerdict", "RecentNorm"]

_WINDOW = 64  # recent updates
_SETTLED = 8  # updates from which on a median is trusted for the rest of the run
_MAX_CLIPPED = 3  # updates of a device in a row that are scaled down; further ones are refused
_FEW_DEVICES = 3  # with fewer there is no majority


class RecentNorm(msgspec.Struct, frozen=True, array_like=True):
    """The norm of an update, at most the bound that it was judged by."""

    device: str
    params: float
    buffers: float


class NormHistory(msgspec.Struct):
    """The norms of recent updates; saved with every checkpoint."""

    recent: list[RecentNorm] = []
    highest: dict[str, float] = msgspec.field(default_factory=lambda: {"params": 0.0, "buffers": 0.0})  # medians so far
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
    """Judges updates by the history of a run; `multiple` is the setting."""

    def __init__(self, multiple: float, history: NormHistory) -> None:
        self._multiple = multiple
        self._history = history
        self._medians = {name: _device_median(history.recent, name) for name in history.highest}

    @property
    def has_history(self) -> bool:
        """Whether there is anything to judge by."""
        return bool(self._history.recent)

    def judge_first(self, norms: Sequence[tuple[str, UpdateNorm]], longest: float) -> list[NormVerdict]:
        """How to merge the first updates of a run, by each other; without a majority also by `longest`, of parameters.

        They then count as recent ones.
        """
        few = len({device for device, _ in norms}) < _FEW_DEVICES
        first = [
            RecentNorm(device, min(norm.params, longest) if few else norm.params, norm.buffers)
            for device, norm in norms
        ]
        self._medians = {name: _device_median(first, name) for name in self._medians}
        verdicts = [self._verdict(norm) for _, norm in norms]
        recent = [self._bounded_entry(device, norm) for device, norm in norms]
        for (device, _), verdict in zip(norms, verdicts, strict=True):
            self._count_clipped(device, verdict)
        self._remember(recent)
        return verdicts

    def judge_update(self, device: str, norm: UpdateNorm) -> NormVerdict:
        """How to merge an update, by those before it; it then counts as one of them."""
        verdict = self._verdict(norm)
        self._count_clipped(device, verdict)
        self._remember([*self._history.recent, self._bounded_entry(device, norm)])
        return verdict

    def refusal(self, device: str, norm: UpdateNorm) -> str | None:
        """Why an update may not be merged at all; None if it may."""
        clipped, devices = self._history.clipped, {entry.device for entry in self._history.recent}
        offenders = sum(count >= _MAX_CLIPPED for count in clipped.values())
        if clipped.get(device, 0) < _MAX_CLIPPED or 2 * offenders >= len(devices | clipped.keys()):
            return None
        verdict = self._verdict(norm)
        over = f"the norm of its update is {verdict.norm:.3g}, over the bound of {verdict.bound:.3g}"
        return f"{over} as those before it (rounds.norm_bound)" if verdict.is_clipped else None

    def _verdict(self, norm: UpdateNorm) -> NormVerdict:
        verdict = NormVerdict()
        for name, value in norm._asdict().items():
            bound = self._bound(name)
            if 0 < bound < value:
                scale = verdict.scale._replace(**{name: self._medians[name] / value})
                verdict = NormVerdict(scale, max(value, verdict.norm), bound if value > verdict.norm else verdict.bound)
        return verdict

    def _bounded_entry(self, device: str, norm: UpdateNorm) -> RecentNorm:
        return RecentNorm(device, *(min(value, self._bound(name) or value) for name, value in norm._asdict().items()))

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
            for name, before in history.highest.items():
                history.highest[name] = max(self._medians[name], before)

    def _bound(self, name: str) -> float:
        """The longest parameters or buffers that are merged as they are; 0 if there is nothing to go by."""
        return self._multiple * max(self._medians[name], self._history.highest[name])


def _device_median(recent: Sequence[RecentNorm], name: str) -> float:
    """The median of the norms above 0, each device counting once; of two in the middle, the lower."""
    norms = sorted((value, entry.device) for entry in recent if (value := getattr(entry, name)) > 0)
    counts = Counter(device for _, device in norms)
    passed, half = 0.0, len(counts) / 2
    for value, device in norms:
        passed += 1 / counts[device]
        if passed >= half - 1e-9:
            return float(value)
    return 0.0

"""The devices whose update for the open round was refused, and whether the run ends because of it.

A refused device waits for the next round. If nobody else is connected, the run ends where those refused are more than
half of the devices that took part lately: then the training itself is at fault. Otherwise it waits for the others, so
that a single device that sends nonsense cannot end a run in which it is alone for a moment.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from potluck.loops.run_progress import RunOutcome, RunProgress, diverged_outcome
from potluck.model.codecs.array_checks import NOT_FINITE

__all__ = ["RefusedDevices"]


class RefusedDevices:
    """Of one round; a device took part lately if it was invited or lost in the last `recent_s`."""

    def __init__(self, progress: RunProgress, recent_s: float) -> None:
        self._progress = progress
        self._recent_s = recent_s
        self._reasons: dict[str, str] = {}  # by device

    def __contains__(self, device: object) -> bool:
        return device in self._reasons

    def add_device(self, device: str, reason: str) -> None:
        self._reasons[device] = reason

    def forget_all(self) -> None:
        """The round is over."""
        self._reasons.clear()

    def are_all(self, devices: Collection[str]) -> bool:
        """Whether there are no other devices than refused ones."""
        return bool(devices) and self._reasons.keys() >= set(devices)

    def outcome(self, connected: Set[str], now: float) -> RunOutcome | None:
        """How the run ends if the devices that were refused are most of those that took part."""
        if 2 * len(self._reasons) <= len(self._reasons.keys() | connected | self._recent_devices(now)):
            return None
        device, reason = next(iter(self._reasons.items()))
        round = self._progress.round
        if all(NOT_FINITE in each for each in self._reasons.values()):
            return diverged_outcome(round, f"no device has a usable update; {device}: {reason}")
        return RunOutcome("failed", f"no update of round {round} could be used: {device}: {reason}")

    def stall_reason(self, now: float, most_names: int) -> str:
        """What a run is waiting for where only refused devices are connected."""
        others = sorted(self._recent_devices(now) - self._reasons.keys())
        device, reason = next(iter(self._reasons.items()))
        waiting = ", ".join(others[:most_names]) or "another device"
        return f"still waiting for {waiting}, since no update of {device} can be used: {reason}"

    def _recent_devices(self, now: float) -> Set[str]:
        return {device for device, at in self._progress.took_part_at.items() if now - at <= self._recent_s}

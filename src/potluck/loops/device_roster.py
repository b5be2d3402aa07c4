"""Who is here."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Set

__all__ = ["DeviceRoster"]


class DeviceRoster(Set[str]):
    """The devices that are here, in order of name, and in which of its lives each one is."""

    def __init__(self) -> None:
        self._incarnations: dict[str, int] = {}
        self._names: list[str] = []

    def __contains__(self, device: object) -> bool:
        return device in self._incarnations

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def incarnation_of(self, device: str) -> int | None:
        """The life that a device is in; none if it is not here."""
        return self._incarnations.get(device)

    def add_device(self, device: str, incarnation: int) -> None:
        if device not in self._incarnations:
            bisect.insort(self._names, device)
        self._incarnations[device] = incarnation

    def remove_device(self, device: str, incarnation: int) -> bool:
        """Take a device off, if it is still in that life; whether it was."""
        if self._incarnations.get(device) != incarnation:
            return False
        del self._incarnations[device]
        self._names.pop(bisect.bisect_left(self._names, device))
        return True

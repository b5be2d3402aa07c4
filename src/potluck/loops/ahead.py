"""Duplex: a layer goes back to the devices as soon as everyone's update for it is merged, while others still push.

    push   layer L ─ … ─ 1      every device, as its gradients get ready
    step        layer L ─ … ─ 1      once all have pushed it
    pull             layer L ─ … ─ 1      for the next round, on the other direction of the link

The steps are taken on a copy. If all goes well, the copy becomes the next version when the round is committed; if a
device is lost or refused on the way, the copy is thrown away, the invitations are taken back, and the round is
committed as it always is, from the updates that are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from potluck.loops.messages import Pull
from potluck.loops.progress import Turn

__all__ = ["Ahead"]


class Ahead:
    """The next version in the making, and who waits for its layers."""

    def __init__(self, draft: Any, turns: Sequence[Turn], layers: int) -> None:
        self.draft = draft
        self._turns = list(turns)  # of the open round, in the order of merging
        self._missing = set(range(layers))
        self._parked: dict[tuple[str, int], Pull] = {}

    @property
    def whole(self) -> bool:
        return not self._missing

    @property
    def samples(self) -> int:
        return sum(turn.samples for turn in self._turns)

    @property
    def devices(self) -> int:
        return len(self._turns)

    def names(self) -> list[str]:
        """The devices of the open round, in the order of merging."""
        return [turn.device for turn in self._turns]

    def ready(self) -> list[tuple[int, int]]:
        """Stretches of layers that everyone has pushed and that are not merged yet, from the last to the first."""
        there = sorted(
            (layer for layer in self._missing if all(turn.covers(layer) for turn in self._turns)), reverse=True
        )
        stretches: list[tuple[int, int]] = []
        for layer in there:
            if stretches and stretches[-1][0] == layer + 1:
                stretches[-1] = (layer, stretches[-1][1])
            else:
                stretches.append((layer, layer))
        return stretches

    def step(self, first: int, last: int, factor: float) -> None:
        """Merge a stretch and go a step down with it."""
        updates = [(turn.pieces, turn.samples) for turn in self._turns]
        self.draft.step(first, last, updates, factor)
        self._missing -= set(range(first, last + 1))

    def has(self, pull: Pull) -> bool:
        return self._missing.isdisjoint(range(pull.first, pull.last + 1))

    def park(self, device: str, pull: Pull) -> None:
        """Answered when its layers are there."""
        self._parked[device, pull.first] = pull

    def unpark(self) -> list[tuple[str, Pull]]:
        """Whoever can be answered now."""
        found = [(device, pull) for (device, _), pull in self._parked.items() if self.has(pull)]
        for device, pull in found:
            del self._parked[device, pull.first]
        return found

    def forget(self, device: str) -> None:
        self._parked = {key: pull for key, pull in self._parked.items() if key[0] != device}

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
from potluck.loops.run_progress import TurnRecord

__all__ = ["DraftVersion"]


class DraftVersion:
    """The next version in the making, and who waits for its layers."""

    def __init__(self, draft: Any, turns: Sequence[TurnRecord], layers: int) -> None:
        self.model_draft = draft
        self._turns = list(turns)  # of the open round, in the order of merging
        self._unmerged_layers = set(range(layers))
        self._deferred_pulls: dict[tuple[str, int], Pull] = {}

    @property
    def is_complete(self) -> bool:
        return not self._unmerged_layers

    @property
    def samples(self) -> int:
        return sum(turn.samples for turn in self._turns)

    @property
    def device_count(self) -> int:
        return len(self._turns)

    def device_names(self) -> list[str]:
        """The devices of the open round, in the order of merging."""
        return [turn.device for turn in self._turns]

    def ready_ranges(self) -> list[tuple[int, int]]:
        """Stretches of layers that everyone has pushed and that are not merged yet, from the last to the first."""
        there = sorted(
            (layer for layer in self._unmerged_layers if all(turn.covers_layer(layer) for turn in self._turns)),
            reverse=True,
        )
        stretches: list[tuple[int, int]] = []
        for layer in there:
            if stretches and stretches[-1][0] == layer + 1:
                stretches[-1] = (layer, stretches[-1][1])
            else:
                stretches.append((layer, layer))
        return stretches

    def merge_layers(self, first: int, last: int, factor: float) -> None:
        """Merge a stretch and go a step down with it."""
        updates = [(turn.segments, turn.samples) for turn in self._turns]
        self.model_draft.step(first, last, updates, factor)
        self._unmerged_layers -= set(range(first, last + 1))

    def has_layers(self, pull: Pull) -> bool:
        return self._unmerged_layers.isdisjoint(range(pull.first, pull.last + 1))

    def defer_pull(self, device: str, pull: Pull) -> None:
        """Answered when its layers are there."""
        self._deferred_pulls[device, pull.first] = pull

    def pop_answerable_pulls(self) -> list[tuple[str, Pull]]:
        """Whoever can be answered now."""
        found = [(device, pull) for (device, _), pull in self._deferred_pulls.items() if self.has_layers(pull)]
        for device, pull in found:
            del self._deferred_pulls[device, pull.first]
        return found

    def forget_device(self, device: str) -> None:
        self._deferred_pulls = {key: pull for key, pull in self._deferred_pulls.items() if key[0] != device}

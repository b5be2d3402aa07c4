"""Which weight version a batch is computed with under 1F1B. Version v is the weights after v updates.

Stage i with window w starts batch t when it has applied the gradients up to batch t − w. Using that newest version,
early stages would compute with older weights than late ones. With vertical sync the batch carries the version of
stage 0, the oldest, and every stage takes that one from its stash:

    w(t+1) = w(t) − η · ∇f(w(t − N + 1), batch t)    for N stages with the published windows
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["version_used", "versions_held"]


def version_used(batch: int, stage: int, windows: Sequence[int], *, start: int = 0, vertical: bool = True) -> int:
    """The weight version that a batch is computed with, counted from `start`."""
    window = windows[0] if vertical else windows[stage]
    return max(0, batch - start - window + 1)


def versions_held(stage: int, windows: Sequence[int], *, vertical: bool = True) -> int:
    """How many versions a stage holds in the steady state, including the newest.

    Without vertical sync that is its window. With it, every stage computes a batch with weights that are w_0 − 1
    updates behind, so it holds as many as stage 0 does, whatever its own window.
    """
    return windows[0] if vertical else windows[stage]

"""Which weights a batch meets under 1F1B: the facts of delayed gradients. Version v is the weights after v updates.

Stage i with window w begins batch t when it has applied the gradients up to batch t − w. Left to itself it would use
that newest version, so the early stages would compute with older weights than the late ones. Under vertical sync the
batch carries the version of stage 0, the oldest, and each stage takes that one from its stash:

    w(t+1) = w(t) − η · ∇f(w(t − N + 1), batch t)    for N stages with the published windows
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["version_used", "versions_held"]


def version_used(batch: int, stage: int, windows: Sequence[int], *, start: int = 0, vertical: bool = True) -> int:
    """How many updates the weights have seen that a batch is computed with, counted from `start`."""
    window = windows[0] if vertical else windows[stage]
    return max(0, batch - start - window + 1)


def versions_held(stage: int, windows: Sequence[int], *, vertical: bool = True) -> int:
    """How many different versions a stage must have at hand in the steady state, the newest included.

    Without vertical sync that is its window. With it, a batch is computed with weights w_0 − 1 updates behind its own,
    on each stage: so every stage keeps as many as stage 0 does, however short its own window.
    """
    return windows[0] if vertical else windows[stage]

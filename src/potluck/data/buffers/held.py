"""One device's buffer: numbers of its stream, kept as a policy says, every one accounted for."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from potluck.data.buffers.accounts import Account
from potluck.data.buffers.policies import Buffer, Labels
from potluck.data.buffers.runs import Numbers, Run, Runs

__all__ = ["Held", "HeldState"]

_MEMORY = 0.8  # how much of a class's worth is what it was before


class HeldState(msgspec.Struct, frozen=True):
    """All that a checkpoint must hold of a buffer."""

    account: Account
    runs: list[Run]
    want: int
    worth: dict[int, float]


class Held:
    """What a device has at hand; `limit` is what its memory takes, whatever the policy says."""

    def __init__(self, policy: Buffer, labels: Labels, limit: int | None = None) -> None:
        self.account = Account()
        self._policy = policy
        self._labels = labels
        self._limit = limit
        self._runs = Runs()
        self._want = 0
        self._worth: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def learns(self) -> bool:
        return self._policy.learns

    def bound(self, rate: float) -> float:
        """The most that is kept at this rate."""
        bound = self._policy.bound(rate, self._want)
        return bound if self._limit is None else min(bound, self._limit)

    def wish(self, want: int, rate: float) -> int:
        """So many are wanted next, so that many are kept until then; fewer where memory does not take them."""
        self._want = want if self._limit is None else min(want, self._limit)
        self._trim(rate)
        return self._want

    def arrive(self, start: int, stop: int, rate: float) -> None:
        """The samples from `start` to before `stop` have streamed in."""
        self._runs.append(start, stop)
        self.account.came(stop - start)
        self._trim(rate)
        self.account.mark()

    def take(self, want: int, rate: float) -> Numbers:
        """At most `want` samples to train on now."""
        before = len(self._runs)
        taken, self._runs = self._policy.take(self._runs, min(want, before), self._labels, self._worth)
        self.account.took(len(taken))
        self.account.lost(before - len(taken) - len(self._runs))
        self._trim(rate)
        return taken

    def forget(self) -> None:
        """All that is held is lost, as when a device loses its power."""
        self.account.lost(len(self._runs))
        self._runs = Runs()

    def learned(self, losses: Mapping[int, float]) -> None:
        """The mean loss of each class in the last batch."""
        for one, loss in losses.items():
            if math.isfinite(loss):
                self._worth[one] = _MEMORY * self._worth.get(one, loss) + (1 - _MEMORY) * loss

    def numbers(self) -> Numbers:
        return self._runs.numbers()

    def state(self) -> HeldState:
        account = msgspec.structs.replace(self.account)
        return HeldState(account, self._runs.listed(), self._want, dict(self._worth))

    def restore(self, state: HeldState) -> None:
        self.account = msgspec.structs.replace(state.account)
        self._runs = Runs((start, stop) for start, stop in state.runs)
        self._want, self._worth = state.want, dict(state.worth)

    def _trim(self, rate: float) -> None:
        bound, before = self.bound(rate), len(self._runs)
        if before > bound:
            self._runs = self._policy.trim(self._runs, int(bound), self._labels, self._worth)
            self.account.lost(before - len(self._runs))

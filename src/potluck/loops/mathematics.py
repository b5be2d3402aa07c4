"""What the loops ask of the mathematics; `potluck.model.training` does it, `Ghosts` only has its sizes.

With ghosts a run is timing only: the same protocol, the same bytes and seconds, no numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from potluck.loops.costs import Costs
from potluck.payload import Payload

__all__ = ["DeviceMathematics", "GhostServer", "GhostTrainer", "ServerMathematics", "Share"]

Indices = npt.NDArray[np.int64]


class Share(NamedTuple):
    """A device's part of the data in one turn; which samples they are is worked out only by who needs them."""

    sizes: Sequence[int]  # of its mini-batches
    batches: Callable[[], Sequence[Indices]]
    rng: Callable[[], np.random.Generator]  # for augmentation, and for what the model draws


class DeviceMathematics(Protocol):
    """A device's side of a round."""

    def train(self, pieces: Sequence[Any], share: Share, lr: float) -> Any:
        """Load the model's pieces, do the work, return the update (with `samples` and `loss`)."""

    def encode(self, trained: Any, first: int, last: int) -> Payload:
        """The update of some layers as it goes on the wire."""


class ServerMathematics(Protocol):
    """The coordinator's side."""

    @property
    def state(self) -> Any:
        """The newest version of the model, never changed in place."""

    def segment(self, state: Any, first: int, last: int) -> Payload: ...

    def refusal(self, pieces: Sequence[Any]) -> str | None: ...

    def add(self, pieces: Sequence[Any], samples: int, staleness: int) -> None: ...

    def step(self, lr: float) -> None: ...

    def evaluate(self) -> dict[str, float]: ...

    def tensors(self) -> dict[str, Any]: ...

    def restore(self, tensors: dict[str, Any]) -> None: ...


class _Nothing(NamedTuple):
    samples: int
    loss: float = 0.0


class GhostTrainer:
    """Updates that are only bytes."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs

    def train(self, pieces: Sequence[Any], share: Share, lr: float) -> _Nothing:
        return _Nothing(sum(share.sizes))

    def encode(self, trained: Any, first: int, last: int) -> Payload:
        return Payload(sum(self._costs.push_bytes[first : last + 1]))


class GhostServer:
    """A model that is only bytes."""

    state = None

    def __init__(self, costs: Costs) -> None:
        self._costs = costs

    def segment(self, state: Any, first: int, last: int) -> Payload:
        return Payload(sum(self._costs.pull_bytes[first : last + 1]))

    def refusal(self, pieces: Sequence[Any]) -> str | None:
        return None

    def add(self, pieces: Sequence[Any], samples: int, staleness: int) -> None:
        pass

    def step(self, lr: float) -> None:
        pass

    def evaluate(self) -> dict[str, float]:
        return {}

    def tensors(self) -> dict[str, Any]:
        return {}

    def restore(self, tensors: dict[str, Any]) -> None:
        pass

"""What the loops ask of the mathematics; `potluck.model.trainer` and `.server` do it, ghosts only have its sizes.

With ghosts a run is timing only: the same protocol, the same bytes and seconds, no numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from potluck.loops.costs import Costs
from potluck.payload import Payload

__all__ = ["Beat", "DeviceMathematics", "GhostServer", "GhostTrainer", "ServerMathematics", "Session", "Share", "Whom"]

Indices = npt.NDArray[np.int64]


class Share(NamedTuple):
    """A device's part of the data in one turn; which samples they are is worked out only by who needs them."""

    sizes: Sequence[int]  # of its mini-batches
    batches: Callable[[], Sequence[Indices]]
    rng: Callable[[], np.random.Generator]  # for augmentation, and for what the model draws
    samples: Any = None  # who has them by index, where that is not the task's own data
    learned: Callable[[Mapping[int, float]], None] | None = None  # to be told `Session.losses`, where they matter


class Whom(NamedTuple):
    """Whose turn it is: all that decides which part of the model is sent, known to both sides."""

    device: str
    round: int
    invited: int  # how often it was invited before


class Beat(Protocol):
    """What training calls as it goes, so that real execution waits for segments and says which gradients are ready."""

    holds: bool  # False where there is nothing to wait for: no need to call
    overlapped: bool  # whether layers of the first and of the last mini-batch are announced one by one

    def batch(self, place: int) -> None:
        """A mini-batch begins."""

    def before(self, layer: int) -> None:
        """A layer of the first forward pass is about to begin: wait for its numbers."""

    def half(self, first: bool, last: bool) -> None:
        """A mini-batch is through its forward pass; whether it is the first of the turn, and the last."""

    def after(self, layer: int) -> None:
        """A layer's part of the update is there."""

    def done(self) -> None:
        """All of it is."""


class Session(Protocol):
    """The mathematics of one turn on a device."""

    samples: int
    loss: float

    @property
    def losses(self) -> Mapping[int, float]:
        """The mean loss of each class, where the share wants to know."""

    def choose(self, batch: int, affordable: float) -> float:
        """Fix what a mini-batch trains of the model, for at most `affordable` of a whole step; its share of one."""

    def train(self, beat: Beat) -> None:
        """Load the model's pieces and do the work."""

    def encode(self, first: int, last: int) -> Payload:
        """The update of some layers as it goes on the wire; asked once for each."""

    def retract(self, first: int, last: int, payload: Payload) -> None:
        """What was sent of these layers counts for nothing."""


class DeviceMathematics(Protocol):
    """A device's side of a round."""

    @property
    def chooses(self) -> bool:
        """Whether every mini-batch may train another part of the model."""

    def memory(self) -> Any:
        """What a device keeps from turn to turn (a codec's residual); None where there is nothing to keep."""

    def session(
        self, whom: Whom, pieces: Mapping[int, Any], share: Share, lr: float, memory: Any, draws: Any
    ) -> Session:
        """Begin a turn; `pieces` fills up as segments arrive. `draws` is for what a sub-model draws."""


class ServerMathematics(Protocol):
    """The coordinator's side."""

    @property
    def state(self) -> Any:
        """The newest version of the model, never changed in place."""

    def select(self, whom: Whom) -> Any:
        """Which part of the model this turn is about; None for all of it."""

    def segment(self, state: Any, part: Any, first: int, last: int) -> Payload: ...

    def refusal(self, pieces: Sequence[Any], part: Any) -> str | None: ...

    def add(self, pieces: Sequence[Any], part: Any, samples: int, staleness: int) -> None: ...

    def step(self, lr: float) -> None: ...

    def draft(self) -> Any:
        """A copy of the newest version, to be stepped layer by layer; `adopt` makes it the newest."""

    def adopt(self, draft: Any) -> None: ...

    def evaluate(self) -> dict[str, float]: ...

    def tensors(self) -> dict[str, Any]: ...

    def restore(self, tensors: dict[str, Any]) -> None: ...


class _Nothing:
    """A turn of sizes only."""

    loss = 0.0
    losses: Mapping[int, float] = {}

    def __init__(self, costs: Costs, samples: int, choose: Callable[[float], float]) -> None:
        self.samples = samples
        self._costs = costs
        self._choose = choose

    def choose(self, batch: int, affordable: float) -> float:
        return self._choose(affordable)

    def train(self, beat: Beat) -> None:
        pass

    def encode(self, first: int, last: int) -> Payload:
        return Payload(sum(self._costs.push_bytes[first : last + 1]))

    def retract(self, first: int, last: int, payload: Payload) -> None:
        pass


class GhostTrainer:
    """Updates that are only bytes."""

    def __init__(self, costs: Callable[[Whom], Costs], carver: Any = None) -> None:
        self._costs = costs
        self._carver = carver
        self.chooses = carver is not None and carver.chooses

    def memory(self) -> None:
        return None

    def session(
        self, whom: Whom, pieces: Mapping[int, Any], share: Share, lr: float, memory: Any, draws: Any
    ) -> _Nothing:
        def choose(affordable: float) -> float:
            return float(self._carver.choose(whom, affordable, draws("choose")).share)

        return _Nothing(self._costs(whom), sum(share.sizes), choose)


class _GhostDraft:
    """Nothing in the making."""

    state = None

    def step(self, first: int, last: int, updates: Any, lr: float) -> None:
        pass


class GhostServer:
    """A model that is only bytes."""

    state = None

    def __init__(self, costs: Callable[[Whom], Costs]) -> None:
        self._costs = costs

    def select(self, whom: Whom) -> Costs:
        return self._costs(whom)

    def segment(self, state: Any, part: Any, first: int, last: int) -> Payload:
        return Payload(sum(part.pull_bytes[first : last + 1]))

    def refusal(self, pieces: Sequence[Any], part: Any) -> str | None:
        return None

    def add(self, pieces: Sequence[Any], part: Any, samples: int, staleness: int) -> None:
        pass

    def step(self, lr: float) -> None:
        pass

    def draft(self) -> _GhostDraft:
        return _GhostDraft()

    def adopt(self, draft: Any) -> None:
        pass

    def evaluate(self) -> dict[str, float]:
        return {}

    def tensors(self) -> dict[str, Any]:
        return {}

    def restore(self, tensors: dict[str, Any]) -> None:
        pass

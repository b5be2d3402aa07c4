"""What the loops ask of the mathematics; `potluck.model.torch_trainer` and `.server` do it, ghosts only have its sizes.

With ghosts a run is timing only: the same protocol, the same bytes and seconds, no numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from potluck.loops.device_costs import DeviceCosts
from potluck.payload import Payload

__all__ = [
    "DeviceBackend",
    "LocalBatches",
    "ServerBackend",
    "TimingOnlyServer",
    "TimingOnlyTrainer",
    "TrainingHooks",
    "TrainingSession",
    "TurnIdentity",
]

Indices = npt.NDArray[np.int64]


class LocalBatches(NamedTuple):
    """A device's part of the data in one turn; which samples they are is worked out only by who needs them."""

    sizes: Sequence[int]  # of its mini-batches
    batches: Callable[[], Sequence[Indices]]
    rng: Callable[[], np.random.Generator]  # for augmentation, and for what the model draws
    samples: Any = None  # who has them by index, where that is not the task's own data
    report_losses: Callable[[Mapping[int, float]], None] | None = None  # to be told `Session.losses`, where they matter


class TurnIdentity(NamedTuple):
    """Whose turn it is: all that decides which part of the model is sent, known to both sides."""

    device: str
    round: int
    invited: int  # how often it was invited before


class TrainingHooks(Protocol):
    """What training calls as it goes, so that real execution waits for segments and says which gradients are ready."""

    holds: bool  # False where there is nothing to wait for: no need to call
    overlapped: bool  # whether layers of the first and of the last mini-batch are announced one by one

    def on_batch_start(self, place: int) -> None:
        """A mini-batch begins."""

    def before_layer_forward(self, layer: int) -> None:
        """A layer of the first forward pass is about to begin: wait for its numbers."""

    def after_forward(self, first: bool, last: bool) -> None:
        """A mini-batch is through its forward pass; whether it is the first of the turn, and the last."""

    def after_layer_backward(self, layer: int) -> None:
        """A layer's part of the update is there."""

    def on_train_end(self) -> None:
        """All of it is."""


class TrainingSession(Protocol):
    """The mathematics of one turn on a device."""

    samples: int
    loss: float

    @property
    def class_losses(self) -> Mapping[int, float]:
        """The mean loss of each class, where the share wants to know."""

    def choose_submodel(self, batch: int, affordable: float) -> float:
        """Fix what a mini-batch trains of the model, for at most `affordable` of a whole step; its share of one."""

    def train(self, beat: TrainingHooks) -> None:
        """Load the model's pieces and do the work."""

    def encode(self, first: int, last: int) -> Payload:
        """The update of some layers as it goes on the wire; asked once for each."""

    def retract_update(self, first: int, last: int, payload: Payload) -> None:
        """What was sent of these layers counts for nothing."""


class DeviceBackend(Protocol):
    """A device's side of a round."""

    @property
    def chooses_per_batch(self) -> bool:
        """Whether every mini-batch may train another part of the model."""

    def create_error_feedback(self) -> Any:
        """What a device keeps from turn to turn (a codec's residual); None where there is nothing to keep."""

    def start_session(
        self, whom: TurnIdentity, pieces: Mapping[int, Any], share: LocalBatches, lr: float, memory: Any, draws: Any
    ) -> TrainingSession:
        """Begin a turn; `pieces` fills up as segments arrive. `draws` is for what a sub-model draws."""


class ServerBackend(Protocol):
    """The coordinator's side."""

    @property
    def state(self) -> Any:
        """The newest version of the model, never changed in place."""

    def select_submodel(self, whom: TurnIdentity) -> Any:
        """Which part of the model this turn is about; None for all of it."""

    def encode_segment(self, state: Any, part: Any, first: int, last: int) -> Payload: ...

    def update_refusal(self, pieces: Sequence[Any], part: Any) -> str | None: ...

    def add_update(self, pieces: Sequence[Any], part: Any, samples: int, staleness: int) -> None: ...

    def step(self, lr: float) -> None: ...

    def start_draft(self) -> Any:
        """A copy of the newest version, to be stepped layer by layer; `adopt` makes it the newest."""

    def adopt_draft(self, draft: Any) -> None: ...

    def evaluate(self) -> dict[str, float]: ...

    def tensors(self) -> dict[str, Any]: ...

    def restore(self, tensors: dict[str, Any]) -> None: ...


class _TimingOnlySession:
    """A turn of sizes only."""

    loss = 0.0
    class_losses: Mapping[int, float] = {}

    def __init__(self, costs: DeviceCosts, samples: int, choose: Callable[[float], float]) -> None:
        self.samples = samples
        self._costs = costs
        self._choose = choose

    def choose_submodel(self, batch: int, affordable: float) -> float:
        return self._choose(affordable)

    def train(self, beat: TrainingHooks) -> None:
        pass

    def encode(self, first: int, last: int) -> Payload:
        return Payload(sum(self._costs.push_bytes[first : last + 1]))

    def retract_update(self, first: int, last: int, payload: Payload) -> None:
        pass


class TimingOnlyTrainer:
    """Updates that are only bytes."""

    def __init__(self, costs: Callable[[TurnIdentity], DeviceCosts], carver: Any = None) -> None:
        self._costs = costs
        self._extractor = carver
        self.chooses_per_batch = carver is not None and carver.chooses_per_batch

    def create_error_feedback(self) -> None:
        return None

    def start_session(
        self, whom: TurnIdentity, pieces: Mapping[int, Any], share: LocalBatches, lr: float, memory: Any, draws: Any
    ) -> _TimingOnlySession:
        def choose(affordable: float) -> float:
            return float(self._extractor.choose_submodel(whom, affordable, draws("choose")).cost_fraction)

        return _TimingOnlySession(self._costs(whom), sum(share.sizes), choose)


class _TimingOnlyDraft:
    """Nothing in the making."""

    state = None

    def step(self, first: int, last: int, updates: Any, lr: float) -> None:
        pass


class TimingOnlyServer:
    """A model that is only bytes."""

    state = None

    def __init__(self, costs: Callable[[TurnIdentity], DeviceCosts]) -> None:
        self._costs = costs

    def select_submodel(self, whom: TurnIdentity) -> DeviceCosts:
        return self._costs(whom)

    def encode_segment(self, state: Any, part: Any, first: int, last: int) -> Payload:
        return Payload(sum(part.pull_bytes[first : last + 1]))

    def update_refusal(self, pieces: Sequence[Any], part: Any) -> str | None:
        return None

    def add_update(self, pieces: Sequence[Any], part: Any, samples: int, staleness: int) -> None:
        pass

    def step(self, lr: float) -> None:
        pass

    def start_draft(self) -> _TimingOnlyDraft:
        return _TimingOnlyDraft()

    def adopt_draft(self, draft: Any) -> None:
        pass

    def evaluate(self) -> dict[str, float]:
        return {}

    def tensors(self) -> dict[str, Any]:
        return {}

    def restore(self, tensors: dict[str, Any]) -> None:
        pass

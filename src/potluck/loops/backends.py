"""The interface between the rounds loop and the tensors, and its timing-only implementations.

`potluck.model.torch_trainer` and `torch_server` implement it with PyTorch. A timing-only run follows the same protocol
with the same bytes and seconds, but no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from potluck.loops.device_costs import DeviceCosts
from potluck.model.model_state import WeightLayout
from potluck.model.pull_deltas import DeltaFormat, EncodedSegment, HeldModel, PulledSegment, PullRequest
from potluck.model.submodel_interface import SubmodelChoice, SubmodelExtractor
from potluck.model.update_merging import FULL_LENGTH, UpdateNorm
from potluck.payload import Payload

__all__ = [
    "DeltaSizes",
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
    """A device's mini-batches in one turn; which samples they hold is only computed on demand."""

    sizes: Sequence[int]  # of its mini-batches
    batches: Callable[[], Sequence[Indices]]
    rng: Callable[[], np.random.Generator]  # for augmentation and the model's own randomness
    samples: Any = None  # the dataset that the indices refer to, if not the task's own
    report_losses: Callable[[Mapping[int, float]], None] | None = None  # receives the session's class losses, if wanted
    received: int = 0  # samples that other devices sent


class TurnIdentity(NamedTuple):
    """What determines the submodel of a turn; known to both sides."""

    device: str
    round: int
    invited: int  # how often it was invited before


class TrainingHooks(Protocol):
    """What training calls as it progresses, so that it waits for segments and announces gradients."""

    holds: bool  # False if there is nothing to wait for: no need to call
    overlapped: bool  # whether the layers of the first and the last mini-batch are announced one by one

    def on_batch_start(self, batch: int) -> None:
        """A mini-batch begins."""

    def before_layer_forward(self, layer: int) -> None:
        """A layer of the first forward pass is about to begin: wait for its weights."""

    def after_forward(self, first: bool, last: bool) -> None:
        """A forward pass is done: of the first mini-batch of the turn, of the last, or of one between."""

    def after_layer_backward(self, layer: int) -> None:
        """The gradient of a layer is ready."""

    def on_train_end(self) -> None:
        """Training is done."""


class TrainingSession(Protocol):
    """The training of one turn on a device."""

    samples: int
    loss: float
    kept: tuple[int, ...]  # units of every channel set that the update covers, once trained; empty: all that was pulled

    @property
    def class_losses(self) -> Mapping[int, float]:
        """The mean loss of each class, if the batches want to know."""

    def choose_submodel(self, batch: int, budget: float) -> float:
        """Choose what a mini-batch trains within a budget; both are fractions of a whole step's cost."""

    def train(self, hooks: TrainingHooks) -> None:
        """Load the model's segments and train."""

    def encode(self, first: int, last: int) -> Payload:
        """The encoded update of some layers; called once for each."""

    def retract_update(self, first: int, last: int, payload: Payload) -> None:
        """Take back the update of these layers, which was sent but not accepted."""


class DeviceBackend(Protocol):
    """The tensors of a rounds run on a device."""

    @property
    def chooses_per_batch(self) -> bool:
        """Whether every mini-batch chooses its own submodel."""

    def decode_segment(self, held: HeldModel, segment: PulledSegment) -> Payload:
        """The weights and buffers of a segment, which may be the difference from what the device holds."""

    def hold_version(self, held: HeldModel, version: int, segments: Sequence[tuple[int, int, Payload]]) -> None:
        """The device has pulled all segments of a version, decoded: it holds that version from now on."""

    def create_carried_state(self) -> Any:
        """State that a device carries from turn to turn (a codec's residual, an optimizer's); None if there is none."""

    def start_session(
        self,
        identity: TurnIdentity,
        segments: Mapping[int, Any],
        batches: LocalBatches,
        lr_factor: float,
        carried: Any,
        rng: Any,
    ) -> TrainingSession:
        """Begin a turn; `segments` fills as they arrive. `rng` is for choosing submodels."""


class ServerBackend(Protocol):
    """The tensors of a rounds run on the coordinator."""

    @property
    def state(self) -> Any:
        """The newest version of the model, never changed in place."""

    @property
    def pulled_state(self) -> Any:
        """What devices pull: the newest version, or what stands for it where pulls are compressed."""

    def select_submodel(self, identity: TurnIdentity) -> Any:
        """The part of the model that a turn trains; None for all of it."""

    def encode_segment(self, state: Any, submodel: Any, request: PullRequest) -> EncodedSegment: ...

    def update_refusal(self, segments: Sequence[Any], submodel: Any) -> str | None: ...

    def update_norm(self, segments: Sequence[Any], submodel: Any) -> UpdateNorm | None:
        """The norm of an update that was not refused; None without weights."""

    def weights_norm(self) -> UpdateNorm:
        """The norms of the newest version's parameters and buffers; without buffers 0."""

    def add_update(
        self, segments: Sequence[Any], submodel: Any, samples: int, staleness: int, scale: UpdateNorm = FULL_LENGTH
    ) -> None: ...

    def step(self, lr_factor: float) -> bool:
        """Make the next version from the added updates; False if it would not be finite: then the model stays."""

    def start_draft(self) -> Any:
        """A copy of the newest version, to be stepped layer by layer; `adopt_draft` makes it the newest."""

    def adopt_draft(self, draft: Any) -> bool:
        """Whether the draft is finite, and now the newest version."""

    def evaluate(self) -> dict[str, float]: ...

    def tensors(self) -> dict[str, Any]: ...

    def restore(self, tensors: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class DeltaSizes:
    """The bytes of compressed pulls where only time is modelled; all deltas are expected to be of the same size."""

    format: DeltaFormat
    scale: float = 1.0  # of what is charged

    def encode_segment(self, request: PullRequest) -> EncodedSegment:
        """By the rules of `ReferenceModel`."""
        layout, sizes = self.format.layout, self.format.unit_bytes()
        params, buffers = (
            layout.itemsize * (one.stop - one.start) for one in layout.layer_slices(request.first, request.last)
        )
        count, units = request.version - request.held, self.format.units_in(request.first, request.last)
        if 0 < request.held <= request.version and units is not None:
            deltas = count * sum(sizes[unit] for unit in units)
            if deltas < params and count * sum(sizes) <= layout.itemsize * layout.param_bounds[-1]:
                return EncodedSegment(self._payload(deltas + buffers), request.held)
        return EncodedSegment(self._payload(params + buffers))

    def _payload(self, nbytes: int) -> Payload:
        return Payload(round(self.scale * nbytes))


class _TimingOnlySession:
    """A turn that only has sizes."""

    loss = 0.0
    class_losses: Mapping[int, float] = {}

    def __init__(
        self,
        trainer: TimingOnlyTrainer,
        identity: TurnIdentity,
        samples: int,
        choose: Callable[[float], SubmodelChoice],
    ) -> None:
        self.samples = samples
        self.kept: tuple[int, ...] = ()
        self._push_bytes = trainer.costs(identity).push_bytes
        self._trainer = trainer
        self._choose = choose
        self._choices: dict[int, SubmodelChoice] = {}

    def choose_submodel(self, batch: int, budget: float) -> float:
        choice = self._choices[batch] = self._choose(budget)
        return float(choice.cost_fraction)

    def train(self, hooks: TrainingHooks) -> None:
        slicer = self._trainer.slicer
        if slicer is not None and (kept := slicer.widest_counts(self._choices.values())):
            self.kept, self._push_bytes = kept, self._trainer.slice_bytes(slicer.layout_of(kept))

    def encode(self, first: int, last: int) -> Payload:
        return Payload(sum(self._push_bytes[first : last + 1]))

    def retract_update(self, first: int, last: int, payload: Payload) -> None:
        pass


class TimingOnlyTrainer:
    """A device whose updates only have sizes; `slice_bytes` are those of each layer of an update's slice."""

    def __init__(
        self,
        costs: Callable[[TurnIdentity], DeviceCosts],
        extractor: SubmodelExtractor | None = None,
        slice_bytes: Callable[[WeightLayout], Sequence[int]] = lambda layout: (),
    ) -> None:
        self.costs = costs
        self.slice_bytes = slice_bytes
        self.slicer = None if extractor is None else extractor.slicer
        self.chooses_per_batch = extractor is not None and extractor.chooses_per_batch
        self._extractor = extractor

    def decode_segment(self, held: HeldModel, segment: PulledSegment) -> Payload:
        return segment.payload

    def hold_version(self, held: HeldModel, version: int, segments: Sequence[tuple[int, int, Payload]]) -> None:
        held.version = version

    def create_carried_state(self) -> None:
        return None

    def start_session(
        self,
        identity: TurnIdentity,
        segments: Mapping[int, Any],
        batches: LocalBatches,
        lr_factor: float,
        carried: Any,
        rng: Any,
    ) -> _TimingOnlySession:
        def choose(budget: float) -> SubmodelChoice:
            assert self._extractor is not None
            return self._extractor.choose_submodel(identity, budget, rng("choose"))

        return _TimingOnlySession(self, identity, sum(batches.sizes), choose)


class _TimingOnlyDraft:
    """A draft without weights."""

    state = None

    def step(self, first: int, last: int, updates: Any, lr_factor: float) -> None:
        pass


class TimingOnlyServer:
    """A model that only has sizes."""

    state = None
    pulled_state = None

    def __init__(self, costs: Callable[[TurnIdentity], DeviceCosts], delta_sizes: DeltaSizes | None = None) -> None:
        self._costs = costs
        self._delta_sizes = delta_sizes  # where pulls are compressed

    def select_submodel(self, identity: TurnIdentity) -> DeviceCosts:
        return self._costs(identity)

    def encode_segment(self, state: Any, submodel: Any, request: PullRequest) -> EncodedSegment:
        if self._delta_sizes is not None:
            return self._delta_sizes.encode_segment(request)
        return EncodedSegment(Payload(sum(submodel.pull_bytes[request.first : request.last + 1])))

    def update_refusal(self, segments: Sequence[Any], submodel: Any) -> str | None:
        return None

    def update_norm(self, segments: Sequence[Any], submodel: Any) -> None:
        return None

    def weights_norm(self) -> UpdateNorm:
        return UpdateNorm(0.0, 0.0)

    def add_update(
        self, segments: Sequence[Any], submodel: Any, samples: int, staleness: int, scale: UpdateNorm = FULL_LENGTH
    ) -> None:
        pass

    def step(self, lr_factor: float) -> bool:
        return True

    def start_draft(self) -> _TimingOnlyDraft:
        return _TimingOnlyDraft()

    def adopt_draft(self, draft: Any) -> bool:
        return True

    def evaluate(self) -> dict[str, float]:
        return {}

    def tensors(self) -> dict[str, Any]:
        return {}

    def restore(self, tensors: dict[str, Any]) -> None:
        pass

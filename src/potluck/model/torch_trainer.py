"""The devices' side of a round: load the model's pieces, train, hand over the update layer by layer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from potluck.errors import ModelError
from potluck.model.class_losses import ClassLossRecorder
from potluck.model.class_skew import DeviceSkewCorrection
from potluck.model.codecs import Codec
from potluck.model.indexed_dataset import IndexedDataset, Indices
from potluck.model.layerwise_replica import LayerwiseReplica
from potluck.model.local_training import LocalSolver, LocalTraining
from potluck.model.model_replica import Loss, ModelReplica, SeededRandomMode
from potluck.model.model_state import WeightLayout
from potluck.model.submodel_interface import SubmodelChoice, SubmodelExtractor, SubmodelSpec, TurnKey
from potluck.payload import Payload

__all__ = ["LocalTrainingSession", "ReceivedSegment", "TorchTrainer", "TurnBatches"]


class TurnBatches(Protocol):
    """A device's part of the data in one turn."""

    @property
    def sizes(self) -> Sequence[int]: ...

    @property
    def batches(self) -> Callable[[], Sequence[Indices]]: ...

    @property
    def rng(self) -> Callable[[], np.random.Generator]: ...

    @property
    def samples(self) -> Any: ...

    @property
    def report_losses(self) -> Callable[[Mapping[int, float]], None] | None: ...


class LayerCallbacks(Protocol):
    """Told of every mini-batch and layer, where it holds."""

    @property
    def holds(self) -> bool: ...

    @property
    def overlapped(self) -> bool: ...

    def on_batch_start(self, place: int) -> None: ...

    def before_layer_forward(self, layer: int) -> None: ...

    def after_forward(self, first: bool, last: bool) -> None: ...

    def after_layer_backward(self, layer: int) -> None: ...

    def on_train_end(self) -> None: ...


class ReceivedSegment(NamedTuple):
    """The numbers of the layers `first` to `last`, as they came over the wire."""

    first: int
    last: int
    payload: Payload


class TorchTrainer:
    """Trains on behalf of devices; each thread has one replica of a kind and uses it for whoever comes next."""

    def __init__(
        self,
        module: nn.Module,
        layout: WeightLayout,
        loss: Loss,
        samples: IndexedDataset,
        local: LocalTraining,
        codec: Codec,
        carver: SubmodelExtractor | None = None,
        remedy: DeviceSkewCorrection | None = None,
    ) -> None:
        self._module = module
        self.layout = layout
        self.loss = loss
        self.samples = samples
        self.local = local
        self.codec = codec
        self.extractor = carver
        self.skew_correction = remedy
        self._threads = threading.local()
        self.is_random = self._probe_model()

    @property
    def chooses_per_batch(self) -> bool:
        return self.extractor is not None and self.extractor.chooses_per_batch

    def create_error_feedback(self) -> Any:
        return self.codec.new_state()

    def start_session(
        self,
        whom: TurnKey,
        pieces: Mapping[int, tuple[int, int, Payload]],
        share: TurnBatches,
        lr: float,
        memory: Any,
        draws: Callable[[str], np.random.Generator],
    ) -> LocalTrainingSession:
        return LocalTrainingSession(self, whom, pieces, share, lr, memory, draws)

    def thread_replica(self, whom: TurnKey, part: SubmodelSpec | None) -> ModelReplica:
        """This thread's replica of the whole model, or a network of its own for a part like this one."""
        kept: dict[Any, ModelReplica] = self._threads.__dict__.setdefault("replicas", {})
        part = None if self.extractor is not None and self.extractor.extracts_from_replica else part
        key = None if part is None else part.key
        if key not in kept:
            if len(kept) > 32:
                kept.clear()
            kept[key] = self._make_replica(whom, part)
        replica = kept[key]
        replica.loss = self.loss if self.extractor is None else self.extractor.training_loss(whom, self.loss)
        return replica

    def layerwise_replica(self, replica: ModelReplica) -> LayerwiseReplica:
        """The replica, run layer by layer."""
        if replica.layerwise is None:
            shape = tuple(self.samples.batch(np.arange(1))[0].shape[1:])
            replica.layerwise = LayerwiseReplica(replica, shape)
        assert isinstance(replica.layerwise, LayerwiseReplica)
        return replica.layerwise

    def _make_replica(self, whom: TurnKey, part: SubmodelSpec | None) -> ModelReplica:
        if part is None:
            replica = ModelReplica(self._module, self.layout, self.loss)
        else:
            assert self.extractor is not None
            replica = ModelReplica(self.extractor.build_network(whom, part), part.layout, self.loss)
        replica.has_other_random_ops = self._has_other_random_ops
        return replica

    def _probe_model(self) -> bool:
        """One gradient on two samples: shows whether model, loss and data fit, and whether the model draws."""
        inputs, targets = self.samples.batch(np.arange(min(2, len(self.samples))))
        replica = ModelReplica(self._module, self.layout, self.loss)
        try:
            replica.has_other_random_ops = False
            with SeededRandomMode(0) as draws:
                replica.gradient(inputs, targets, np.random.default_rng(0))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            reason = str(error).strip().splitlines()[0]
            shape = tuple(inputs.shape[1:])
            raise ModelError(f"the model does not fit the data (inputs of shape {shape}): {reason}") from error
        self._has_other_random_ops = bool(draws.used_random)
        return self._has_other_random_ops or bool(replica.dropouts)


class LocalTrainingSession:
    """One device's turn."""

    def __init__(
        self,
        trainer: TorchTrainer,
        whom: TurnKey,
        pieces: Mapping[int, tuple[int, int, Payload]],
        share: TurnBatches,
        lr: float,
        memory: Any,
        draws: Callable[[str], np.random.Generator],
    ) -> None:
        self._trainer = trainer
        self._turn = whom
        self._submodel = None if trainer.extractor is None else trainer.extractor.select_submodel(whom)
        self._layout = trainer.layout if self._submodel is None else self._submodel.layout
        self._segments = pieces
        self._turn_batches = share
        self._lr = lr
        self._memory = memory
        self._draws = draws
        self._choices: dict[int, SubmodelChoice] = {}
        self._choice_rng: np.random.Generator | None = None
        self._loaded: set[int] = set()
        self._params: Tensor | None = None
        self._buffers: Tensor | None = None
        self.samples = sum(share.sizes)
        self.loss = 0.0
        self._class_losses: ClassLossRecorder | None = None

    @property
    def class_losses(self) -> Mapping[int, float]:
        return {} if self._class_losses is None else self._class_losses.mean_losses

    # --- before ----------------------------------------------------------------------------------------------------

    def choose_submodel(self, batch: int, affordable: float) -> float:
        carver = self._trainer.extractor
        assert carver is not None
        if self._choice_rng is None:
            self._choice_rng = self._draws("choose")
        choice = self._choices[batch] = carver.choose_submodel(self._turn, affordable, self._choice_rng)
        return choice.cost_fraction

    # --- train -----------------------------------------------------------------------------------------------------

    def train(self, beat: LayerCallbacks) -> None:
        replica = self._trainer.thread_replica(self._turn, self._submodel)
        replica.loss = self._turn_loss(replica.loss)
        walk = self._trainer.local.new_solver(replica, self._lr)
        if beat.holds and beat.overlapped and not self._extracts_from_replica:
            self._train_layerwise(replica, walk, beat)
        else:
            self._train_batchwise(replica, walk, beat)

    def _turn_loss(self, loss: Loss) -> Loss:
        """As this turn uses it: noted by class where that is wanted, and with the job's remedy against skew."""
        if self._turn_batches.report_losses is not None:
            loss = self._class_losses = ClassLossRecorder(loss)
        remedy = self._trainer.skew_correction
        return loss if remedy is None else remedy.device_loss(self._turn.device, loss)

    def _train_batchwise(self, replica: ModelReplica, walk: LocalSolver, beat: LayerCallbacks) -> None:
        if beat.holds and beat.overlapped:
            for layer in range(self._layout.layer_count):
                beat.before_layer_forward(layer)
        self._load_all_segments(replica)
        before = replica.copy_buffers()
        walk.start()
        rng, units = self._batch_rng(), self._draws("units") if self._extracts_from_replica else None
        for place, (inputs, targets, share) in enumerate(self._iter_batches(rng)):
            if beat.holds:
                beat.on_batch_start(place)
            self._train_batch(replica, walk, place, (inputs, targets), share, rng, units)
        self._params, self._buffers = self._select_update(walk.update(), replica.buffer_change(before))
        if beat.holds and beat.overlapped:
            beat.after_forward(first=True, last=True)
            for layer in reversed(range(self._layout.layer_count)):
                beat.after_layer_backward(layer)
        if beat.holds:
            beat.on_train_end()

    def _train_batch(
        self,
        replica: ModelReplica,
        walk: LocalSolver,
        place: int,
        batch: tuple[Tensor, Tensor],
        share: float,
        rng: np.random.Generator | None,
        units: np.random.Generator | None,
    ) -> None:
        draws = rng if self._trainer.is_random else None
        if units is not None:
            assert self._trainer.extractor is not None
            loan = self._trainer.extractor.extract_submodel(replica, self._turn, self._choices.get(place), units)
            loan.replica.loss = replica.loss
            gradient, loss = loan.replica.gradient(*batch, draws)
            walk.step_submodel(loan, gradient, share)
            loan.close()
        else:
            gradient, loss = replica.gradient(*batch, draws)
            walk.step(gradient, share)
        self.loss += loss * share

    def _load_all_segments(self, replica: ModelReplica) -> None:
        """All pieces; those of a part on loan go to their places in the whole model."""
        if self._submodel is None or not self._extracts_from_replica:
            self._load_segments(replica, range(self._layout.layer_count))
            return
        pieces = [self._segments[first][2].arrays for first in sorted(self._segments)]
        for numbers, places, which in (
            (replica.state.params, self._submodel.params, 0), (replica.state.buffers, self._submodel.buffers, 1),
        ):  # fmt: skip
            numbers[places] = torch.cat([torch.from_numpy(arrays[which]) for arrays in pieces])
        replica.sync_counters()

    def _select_update(self, params: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor]:
        """The update as it is pushed: of the part that was pulled."""
        if self._submodel is None or not self._extracts_from_replica:
            return params, buffers
        return params[self._submodel.params], buffers[self._submodel.buffers]

    @property
    def _extracts_from_replica(self) -> bool:
        return self._trainer.extractor is not None and self._trainer.extractor.extracts_from_replica

    def _train_layerwise(self, replica: ModelReplica, walk: LocalSolver, beat: LayerCallbacks) -> None:
        """The first forward waits for segments, layer by layer; the last backward hands over updates likewise."""
        paced, rng = self._trainer.layerwise_replica(replica), self._batch_rng()
        draws = rng if self._trainer.is_random else None
        last = len(self._turn_batches.sizes) - 1
        self._params = torch.empty_like(replica.state.params)
        for place, (inputs, targets, share) in enumerate(self._iter_batches(rng)):
            beat.on_batch_start(place)

            def arrived(layer: int) -> None:
                beat.before_layer_forward(layer)
                self._load_segments(replica, (layer,))

            def halfway(loss: float, place: int = place, share: float = share) -> None:
                self.loss += loss * share
                if place == 0:
                    walk.start()
                beat.after_forward(first=place == 0, last=place == last)
                if place == last:
                    self._buffers = replica.buffer_change(self._pulled_buffers(replica))

            def ready(layer: int, share: float = share) -> None:
                entries, _ = self._layout.layer_slices(layer, layer)
                walk.step(paced.flat_gradient, share, entries)
                assert self._params is not None
                self._params[entries] = walk.update(entries)
                beat.after_layer_backward(layer)

            gradient, _ = paced.gradient(
                inputs, targets, draws,
                before=arrived if place == 0 else None, between=halfway, ready=ready if place == last else None,
            )  # fmt: skip
            if place != last:
                walk.step(gradient, share)

    def _iter_batches(self, rng: np.random.Generator | None) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Inputs, targets, and which share of the turn's samples they are."""
        samples = self._turn_batches.samples or self._trainer.samples
        for indices in self._turn_batches.batches():
            yield *samples.batch(indices, rng), len(indices) / max(self.samples, 1)

    def _batch_rng(self) -> np.random.Generator | None:
        samples = self._turn_batches.samples or self._trainer.samples
        return self._turn_batches.rng() if self._trainer.is_random or samples.needs_rng else None

    def _load_segments(self, replica: ModelReplica, layers: Sequence[int]) -> None:
        """Take over the pieces that begin at these layers."""
        for first in layers:
            if first in self._segments and first not in self._loaded:
                self._loaded.add(first)
                _, last, payload = self._segments[first]
                params, buffers = payload.arrays
                replica.load_layers(first, last, torch.from_numpy(params), torch.from_numpy(buffers))
        replica.sync_counters()

    def _pulled_buffers(self, replica: ModelReplica) -> Tensor:
        """The buffers as they came: by now the first forward pass has changed the replica's."""
        pulled = [torch.from_numpy(self._segments[first][2].arrays[1]) for first in sorted(self._segments)]
        return torch.cat(pulled) if pulled else replica.state.buffers

    # --- after -----------------------------------------------------------------------------------------------------

    def encode(self, first: int, last: int) -> Payload:
        assert self._params is not None, "nothing was trained"
        assert self._buffers is not None, "nothing was trained"
        params, buffers = self._layout.layer_slices(first, last)
        coded = self._trainer.codec.encode(self._params[params], self._memory, params)
        kept = self._buffers[buffers].numpy()
        return Payload(coded.nbytes + kept.nbytes, (*coded.arrays, kept))

    def retract_update(self, first: int, last: int, payload: Payload) -> None:
        if self._memory is not None:
            params, _ = self._layout.layer_slices(first, last)
            *coded, _ = payload.arrays
            self._trainer.codec.retract(Payload(0, tuple(coded)), self._memory, params)

"""One device's turn: load the received segments, train, hand over the update layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from potluck.model.carried_state import CarriedState
from potluck.model.class_skew import DeviceSkewCorrection
from potluck.model.codecs import Codec
from potluck.model.evaluation_score import ClassLossRecorder
from potluck.model.indexed_dataset import IndexedDataset, Indices
from potluck.model.layerwise_replica import LayerwiseReplica
from potluck.model.local_solvers import SolverState
from potluck.model.local_training import LocalSolver, LocalTraining
from potluck.model.model_replica import InputCache, Loss, ModelReplica
from potluck.model.model_state import WeightLayout
from potluck.model.moment_buffers import read_moments, write_moments
from potluck.model.submodel_interface import SubmodelChoice, SubmodelExtractor, SubmodelSpec, TurnKey
from potluck.payload import Payload

__all__ = ["LayerCallbacks", "LocalTrainingSession", "SessionTrainer", "TurnBatches"]


class TurnBatches(Protocol):
    """The batches that a device trains on in one turn."""

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
    """Called for every mini-batch and, with overlapped transfers, for every layer; unused unless `holds`."""

    @property
    def holds(self) -> bool: ...

    @property
    def overlapped(self) -> bool: ...

    def on_batch_start(self, index: int) -> None: ...

    def before_layer_forward(self, layer: int) -> None: ...

    def after_forward(self, first: bool, last: bool) -> None: ...

    def after_layer_backward(self, layer: int) -> None: ...

    def on_train_end(self) -> None: ...


class SessionTrainer(Protocol):
    """What a session needs of the trainer that opens it."""

    layout: WeightLayout
    samples: IndexedDataset
    local: LocalTraining
    codec: Codec
    extractor: SubmodelExtractor | None
    skew_correction: DeviceSkewCorrection | None
    is_random: bool

    @property
    def state_policy(self) -> str: ...

    def thread_replica(self, turn: TurnKey, submodel: SubmodelSpec | None) -> ModelReplica: ...

    def layerwise_replica(self, replica: ModelReplica) -> LayerwiseReplica: ...


class LocalTrainingSession:
    """One device's turn: sub-model choices, local training, and the encoded update."""

    def __init__(
        self,
        trainer: SessionTrainer,
        turn: TurnKey,
        segments: Mapping[int, tuple[int, int, Payload]],
        turn_batches: TurnBatches,
        lr: float,
        carried: CarriedState | None,
        child_rng: Callable[[str], np.random.Generator],
    ) -> None:
        self._trainer = trainer
        self._turn = turn
        self._submodel = None if trainer.extractor is None else trainer.extractor.select_submodel(turn)
        self._layout = trainer.layout if self._submodel is None else self._submodel.layout
        self._segments = segments
        self._turn_batches = turn_batches
        self._lr = lr
        self._carried = carried or CarriedState()
        self._codec_state = self._carried.codec
        self._averages_state = trainer.state_policy == "average"
        self._solver: LocalSolver
        self._state_before: SolverState | None = None  # of the optimizer
        self._encoded_layers = 0
        self._child_rng = child_rng
        self._choices: dict[int, SubmodelChoice] = {}
        self._choice_rng: np.random.Generator | None = None
        self._loaded: set[int] = set()
        self._params: Tensor | None = None
        self._buffers: Tensor | None = None
        self.samples = sum(turn_batches.sizes)
        self.kept: tuple[int, ...] = ()
        self.loss = 0.0
        self._class_losses: ClassLossRecorder | None = None

    @property
    def class_losses(self) -> Mapping[int, float]:
        return {} if self._class_losses is None else self._class_losses.mean_losses

    # --- before training -------------------------------------------------------------------------------------------

    def choose_submodel(self, batch: int, affordable: float) -> float:
        extractor = self._trainer.extractor
        assert extractor is not None
        if self._choice_rng is None:
            self._choice_rng = self._child_rng("choose")
        choice = self._choices[batch] = extractor.choose_submodel(self._turn, affordable, self._choice_rng)
        return choice.cost_fraction

    # --- training --------------------------------------------------------------------------------------------------

    def train(self, callbacks: LayerCallbacks) -> None:
        replica = self._trainer.thread_replica(self._turn, self._submodel)
        replica.loss = self._turn_loss(replica.loss)
        solver = self._solver = self._trainer.local.new_solver(replica, self._lr)
        self._state_before = self._carried.optimizer
        if self._state_before:
            solver.load_state(self._state_before)
        if (
            callbacks.holds
            and callbacks.overlapped
            and not self._extracts_from_replica
            and not replica.needs_all_layers
        ):
            self._train_layerwise(replica, solver, callbacks)
        else:
            self._train_batchwise(replica, solver, callbacks)

    def _turn_loss(self, loss: Loss) -> Loss:
        """The loss of this turn: recorded by class if requested, and with the job's skew correction."""
        if self._turn_batches.report_losses is not None:
            loss = self._class_losses = ClassLossRecorder(loss)
        correction = self._trainer.skew_correction
        return loss if correction is None else correction.device_loss(self._turn.device, loss)

    def _train_batchwise(self, replica: ModelReplica, solver: LocalSolver, callbacks: LayerCallbacks) -> None:
        if callbacks.holds and callbacks.overlapped:
            for layer in range(self._layout.layer_count):
                callbacks.before_layer_forward(layer)
        self._load_all_segments(replica)
        replica.begin_turn()
        before = replica.copy_buffers()
        if self._averages_state:
            solver.load_state(read_moments(replica.layout, before))
        solver.start()
        rng, unit_rng = self._batch_rng(), self._child_rng("units") if self._extracts_from_replica else None
        for index, batch in enumerate(self._iter_batches(rng, replica.input_cache)):
            if callbacks.holds:
                callbacks.on_batch_start(index)
            self._train_batch(replica, solver, index, batch, rng, unit_rng)
        solver.finish()
        if self._averages_state:
            write_moments(replica.layout, solver.save_state(), replica.state.buffers)
        replica.constants.check()
        self._cut_update(solver.update(), replica.buffer_change(before))
        if callbacks.holds and callbacks.overlapped:
            callbacks.after_forward(first=True, last=True)
            for layer in reversed(range(self._layout.layer_count)):
                callbacks.after_layer_backward(layer)
        if callbacks.holds:
            callbacks.on_train_end()

    def _train_batch(
        self,
        replica: ModelReplica,
        solver: LocalSolver,
        index: int,
        batch: tuple[Any, Any, float],
        rng: np.random.Generator | None,
        unit_rng: np.random.Generator | None,
    ) -> None:
        """One local step, on a sub-model drawn with `unit_rng` where sub-models are extracted from the replica."""
        inputs, targets, fraction = batch
        model_rng = rng if self._trainer.is_random else None
        if unit_rng is not None:
            assert self._trainer.extractor is not None
            submodel = self._trainer.extractor.extract_submodel(replica, self._turn, self._choices.get(index), unit_rng)
            submodel.replica.loss, submodel.replica.autocast = replica.loss, replica.autocast
            gradient, loss = submodel.replica.gradient(inputs, targets, model_rng)
            solver.step_submodel(submodel, gradient, fraction)
            submodel.close()
        else:
            gradient, loss = replica.gradient(inputs, targets, model_rng)
            solver.step(gradient, fraction)
        self.loss += loss * fraction

    def _load_all_segments(self, replica: ModelReplica) -> None:
        """Load all segments; those of a sub-model go to its entries in the replica of the whole model."""
        if self._submodel is None or not self._extracts_from_replica:
            self._load_segments(replica, range(self._layout.layer_count))
            return
        segments = [self._segments[first][2].arrays for first in sorted(self._segments)]
        replica.state.params[self._submodel.params] = torch.cat([torch.from_numpy(params) for params, _ in segments])
        replica.state.buffers[self._submodel.buffers] = torch.cat([torch.from_numpy(kept) for _, kept in segments])
        replica.sync_counters()

    def _cut_update(self, params: Tensor, buffers: Tensor) -> None:
        """The update that is pushed: of the sub-model that was pulled, or of what the mini-batches trained of it."""
        slicer = None if self._trainer.extractor is None else self._trainer.extractor.slicer
        if self._submodel is not None and self._extracts_from_replica:
            params, buffers = params[self._submodel.params], buffers[self._submodel.buffers]
        elif slicer is not None and (kept := slicer.widest_counts(self._choices.values())):
            self.kept, self._layout = kept, slicer.layout_of(kept)
            params, buffers = slicer.cut(kept, params, buffers)
        self._params, self._buffers = params, buffers

    @property
    def _extracts_from_replica(self) -> bool:
        return self._trainer.extractor is not None and self._trainer.extractor.extracts_from_replica

    def _train_layerwise(self, replica: ModelReplica, solver: LocalSolver, callbacks: LayerCallbacks) -> None:
        """The first forward waits for segments layer by layer; the last backward hands over the update likewise."""
        layerwise, rng = self._trainer.layerwise_replica(replica), self._batch_rng()
        model_rng = rng if self._trainer.is_random else None
        last = len(self._turn_batches.sizes) - 1
        self._params = torch.empty_like(replica.state.params)
        for index, (inputs, targets, fraction) in enumerate(self._iter_batches(rng)):
            callbacks.on_batch_start(index)

            def await_layer(layer: int) -> None:
                callbacks.before_layer_forward(layer)
                self._load_segments(replica, (layer,))

            def end_forward(loss: float, index: int = index, fraction: float = fraction) -> None:
                self.loss += loss * fraction
                if index == 0:
                    solver.start()
                callbacks.after_forward(first=index == 0, last=index == last)
                if index == last:
                    self._buffers = replica.buffer_change(self._pulled_buffers(replica))

            def finish_layer(layer: int, fraction: float = fraction) -> None:
                entries, _ = self._layout.layer_slices(layer, layer)
                solver.step(layerwise.flat_gradient, fraction, entries)
                assert self._params is not None
                self._params[entries] = solver.update(entries)
                callbacks.after_layer_backward(layer)

            gradient, _ = layerwise.gradient(
                inputs,
                targets,
                model_rng,
                before_layer=await_layer if index == 0 else None,
                after_forward=end_forward,
                layer_ready=finish_layer if index == last else None,
            )
            if index != last:
                solver.step(gradient, fraction)
        replica.constants.check()

    def _iter_batches(
        self, rng: np.random.Generator | None, cache: InputCache | None = None
    ) -> Iterator[tuple[Any, Any, float]]:
        """Inputs, targets, and their fraction of the turn's samples."""
        samples = self._turn_batches.samples or self._trainer.samples
        for indices in self._turn_batches.batches():
            batch = samples.batch(indices, rng) if cache is None else cache.batch(samples, indices)
            yield *batch, len(indices) / max(self.samples, 1)

    def _batch_rng(self) -> np.random.Generator | None:
        samples = self._turn_batches.samples or self._trainer.samples
        return self._turn_batches.rng() if self._trainer.is_random or samples.needs_rng else None

    def _load_segments(self, replica: ModelReplica, layers: Sequence[int]) -> None:
        """Load the segments that begin at these layers, each once."""
        for first in layers:
            if first in self._segments and first not in self._loaded:
                self._loaded.add(first)
                _, last, payload = self._segments[first]
                params, buffers = payload.arrays
                replica.load_layers(first, last, torch.from_numpy(params), torch.from_numpy(buffers))
        replica.sync_counters()

    def _pulled_buffers(self, replica: ModelReplica) -> Tensor:
        """The buffers as received: by now the first forward pass has changed the replica's."""
        pulled = [torch.from_numpy(self._segments[first][2].arrays[1]) for first in sorted(self._segments)]
        return torch.cat(pulled) if pulled else replica.state.buffers

    # --- after training --------------------------------------------------------------------------------------------

    def encode(self, first: int, last: int) -> Payload:
        assert self._params is not None, "nothing was trained"
        assert self._buffers is not None, "nothing was trained"
        params, buffers = self._layout.layer_slices(first, last)
        coded = self._trainer.codec.encode(self._params[params], self._codec_state, params)
        kept = self._buffers[buffers].numpy()
        self._encoded_layers += last - first + 1
        if self._encoded_layers == self._layout.layer_count and self._carried.optimizer is not None:
            self._carried.optimizer = self._solver.save_state()
        return Payload(coded.nbytes + kept.nbytes, (*coded.arrays, kept))

    def retract_update(self, first: int, last: int, payload: Payload) -> None:
        self._carried.optimizer = self._state_before
        if self._codec_state is not None:
            params, _ = self._layout.layer_slices(first, last)
            *coded, _ = payload.arrays
            self._trainer.codec.retract(Payload(0, tuple(coded)), self._codec_state, params)

"""A device's side of a round: keeps replicas of the model and opens a training session for each turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from potluck.errors import SettingError
from potluck.model.carried_state import CarriedState
from potluck.model.class_skew import DeviceSkewCorrection
from potluck.model.codecs import Codec
from potluck.model.indexed_dataset import IndexedDataset
from potluck.model.input_spec import InputSpec, misfit_error
from potluck.model.layerwise_replica import LayerwiseReplica
from potluck.model.local_training import LocalSteps, LocalTraining
from potluck.model.model_replica import ModelReplica, ModelTemplate, SeededRandomMode
from potluck.model.pull_deltas import DeltaFormat, HeldModel, PulledSegment, join_segments
from potluck.model.submodel_interface import SubmodelChoice, SubmodelExtractor, SubmodelSpec, TurnKey
from potluck.model.training_probe import checked_loss
from potluck.model.training_session import LocalTrainingSession, TurnBatches
from potluck.payload import Payload

__all__ = ["ReceivedSegment", "TorchTrainer"]

_MOST_REPLICAS = 32  # of different sub-models in one thread


class ReceivedSegment(NamedTuple):
    """The values of the layers `first` to `last` as received; of an update, of the units `kept` if there are any."""

    first: int
    last: int
    payload: Payload
    kept: tuple[int, ...] = ()


class TorchTrainer:
    """Trains on behalf of devices. Each thread keeps its replicas and reuses them for all devices it trains for."""

    def __init__(
        self,
        template: ModelTemplate,
        samples: IndexedDataset,
        local: LocalTraining,
        codec: Codec,
        extractor: SubmodelExtractor | None = None,
        skew_correction: DeviceSkewCorrection | None = None,
    ) -> None:
        self._template = template
        self.layout = template.layout
        self.loss = template.loss
        self.samples = samples
        self.local = local
        self.codec = codec
        self.extractor = extractor
        self.skew_correction = skew_correction
        self.deltas: DeltaFormat | None = None  # of pulls, where they are compressed
        self._threads = threading.local()
        self.is_random = self._probe_model()

    def decode_segment(self, held: HeldModel, segment: PulledSegment) -> Payload:
        """The weights and buffers of a segment, which may be the difference from what the device holds."""
        return segment.payload if self.deltas is None else self.deltas.decode_segment(held, segment)

    def hold_version(self, held: HeldModel, version: int, segments: Sequence[tuple[int, int, Payload]]) -> None:
        """The device has pulled all segments of a version, decoded."""
        held.version, held.params = version, join_segments(segments)

    @property
    def chooses_per_batch(self) -> bool:
        return self.extractor is not None and self.extractor.chooses_per_batch

    @property
    def state_policy(self) -> str:
        """What becomes of the optimizer's state after a turn."""
        return self.local.state if isinstance(self.local, LocalSteps) else "reset"

    def create_carried_state(self) -> CarriedState | None:
        codec, keeps = self.codec.new_state(self.layout), self.state_policy == "keep"
        return None if codec is None and not keeps else CarriedState(codec, {} if keeps else None)

    def start_session(
        self,
        turn: TurnKey,
        segments: Mapping[int, tuple[int, int, Payload]],
        turn_batches: TurnBatches,
        lr: float,
        carried: CarriedState | None,
        child_rng: Callable[[str], np.random.Generator],
    ) -> LocalTrainingSession:
        return LocalTrainingSession(self, turn, segments, turn_batches, lr, carried, child_rng)

    def thread_replica(self, turn: TurnKey, submodel: SubmodelSpec | None) -> ModelReplica:
        """This thread's replica of the whole model, or one of a network built for this sub-model."""
        replicas: dict[Any, ModelReplica] = self._threads.__dict__.setdefault("replicas", {})
        submodel = None if self.extractor is not None and self.extractor.extracts_from_replica else submodel
        key = None if submodel is None else submodel.key
        if key not in replicas:
            if len(replicas) > _MOST_REPLICAS:
                replicas.clear()
            replicas[key] = self._make_replica(turn, submodel)
        replica = replicas[key]
        replica.loss = self.loss if self.extractor is None else self.extractor.training_loss(turn, self.loss)
        return replica

    def layerwise_replica(self, replica: ModelReplica) -> LayerwiseReplica:
        """The replica as one that runs layer by layer."""
        if replica.layerwise is None:
            inputs, _ = self.samples.batch(np.arange(1))
            replica.layerwise = LayerwiseReplica(replica, InputSpec.of_batch(inputs))
        assert isinstance(replica.layerwise, LayerwiseReplica)
        return replica.layerwise

    def _make_replica(self, turn: TurnKey, submodel: SubmodelSpec | None) -> ModelReplica:
        if submodel is None:
            replica = self._template.new_replica()
        else:
            assert self.extractor is not None
            network = self.extractor.build_network(turn, submodel)
            replica = ModelReplica(network, submodel.layout, self.loss)
            replica.input_cache = getattr(network, "input_cache", None)
        replica.has_other_random_ops = self._has_other_random_ops
        replica.autocast = self.local.autocast_dtype
        return replica

    def check_precision(self) -> None:
        """Compute a gradient on two samples in the precision that the job asks for."""
        if self.local.autocast_dtype is None:
            return
        replica = self._template.new_replica()
        replica.autocast = self.local.autocast_dtype
        try:
            replica.gradient(*self.samples.batch(np.arange(min(2, len(self.samples)))), np.random.default_rng(0))
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise SettingError(
                "rounds.local.precision", f"the model does not run in {self.local.precision}: {reason}; use float32"
            ) from error

    def probe_submodel(self, turn: TurnKey, choice: SubmodelChoice | None) -> None:
        """Compute a gradient of a sub-model on two samples; raises whatever its forward and backward raise."""
        assert self.extractor is not None
        replica, rng = self._template.new_replica(), np.random.default_rng(0)
        submodel = self.extractor.extract_submodel(replica, turn, choice, rng)
        submodel.replica.gradient(*self.samples.batch(np.arange(min(2, len(self.samples)))), rng)
        submodel.close()

    def _probe_model(self) -> bool:
        """Compute a gradient on two samples: do model, loss and data fit, and does the model use random numbers?"""
        inputs, targets = self.samples.batch(np.arange(min(2, len(self.samples))))
        replica = self._template.new_replica()
        try:
            replica.has_other_random_ops = False
            replica.loss = checked_loss(self.loss)
            with SeededRandomMode(0) as random_mode:
                replica.gradient(inputs, targets, np.random.default_rng(0))
        except Exception as error:  # the user's model or loss may raise anything
            raise misfit_error(error, inputs) from error
        self._has_other_random_ops = bool(random_mode.used_random)
        return self._has_other_random_ops or bool(replica.dropouts)

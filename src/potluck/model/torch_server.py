"""The coordinator's side of a round: holds the model, merges updates one at a time and steps the optimizer."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from potluck.model.codecs import Codec
from potluck.model.codecs.array_checks import FLOATS, array_refusal, is_finite, vector_norm
from potluck.model.evaluation_score import EvaluationScore, iter_evaluation_batches
from potluck.model.indexed_dataset import IndexedDataset
from potluck.model.model_average import ModelAverage
from potluck.model.model_draft import ModelDraft
from potluck.model.model_replica import ModelReplica, ModelTemplate
from potluck.model.model_state import ModelState, WeightLayout
from potluck.model.optimizers import Optimizer
from potluck.model.pull_deltas import DeltaFormat, EncodedSegment, PullRequest, ReferenceModel
from potluck.model.submodel_interface import SubmodelExtractor, SubmodelSpec, TurnKey
from potluck.model.torch_trainer import ReceivedSegment
from potluck.model.update_merging import FULL_LENGTH, MergeRule, UpdateNorm, UpdateSum
from potluck.payload import Payload

__all__ = ["TorchServer"]


class TorchServer:
    """Holds the newest version of the model and the sum of the updates that lead to the next one."""

    def __init__(
        self,
        template: ModelTemplate,
        test: IndexedDataset | None,
        merge: MergeRule,
        optimizer: Optimizer,
        codec: Codec,
        extractor: SubmodelExtractor | None = None,
    ) -> None:
        self.layout = template.layout
        self._frozen = template.frozen
        self.state = ModelState.of_module(template.module, template.layout)
        self._merge = merge
        self._codec = codec
        self._extractor = extractor
        self._calibrate = None if extractor is None else extractor.calibration_hook()
        self._settings = optimizer
        self._optimizer = optimizer.build_optimizer(self.state.params)
        self._sum: UpdateSum | None = None
        self._test = test
        self._metrics = template.metrics
        self._best_state: ModelState | None = None
        self._replica = template.new_replica()
        self._reference: ReferenceModel | None = None  # that devices hold, where pulls are compressed
        self._average: ModelAverage | None = None  # of all versions, where it is asked for

    def compress_pulls(self, deltas: DeltaFormat) -> None:
        """From now on devices pull differences of a reference model."""
        self._reference = ReferenceModel(deltas, self.state.params.clone())

    def average_versions(self, decay: float) -> None:
        """From now on the moving average of the versions is evaluated and saved, not the newest one."""
        self._average = ModelAverage(decay, self.state)

    @property
    def _evaluated_state(self) -> ModelState:
        return self.state if self._average is None else self._average.state

    @property
    def pulled_state(self) -> ModelState:
        """What devices pull: the newest version, or the reference where pulls are compressed."""
        return self.state if self._reference is None else ModelState(self._reference.params, self.state.buffers)

    def select_submodel(self, turn: TurnKey) -> SubmodelSpec | None:
        """The sub-model of a turn; None for the whole model."""
        return None if self._extractor is None else self._extractor.select_submodel(turn)

    def encode_segment(self, state: ModelState, submodel: SubmodelSpec | None, request: PullRequest) -> EncodedSegment:
        """Some layers of a version of the model, ready to be sent."""
        if self._reference is not None:
            return self._reference.encode_segment(state, request)
        if submodel is None:
            params, buffers = self.layout.layer_slices(request.first, request.last)
            vectors = state.params[params], state.buffers[buffers]
        else:
            vectors = submodel.gather_layers(state, request.first, request.last)
        arrays = tuple(vector.numpy() for vector in vectors)
        return EncodedSegment(Payload(sum(vector.nbytes for vector in vectors), arrays))

    def _update_layout(self, segments: Sequence[ReceivedSegment], submodel: SubmodelSpec | None) -> WeightLayout:
        """The layout of an update: of what was pulled, or of the slice that it says it covers."""
        if segments and (kept := segments[0].kept):
            assert self._extractor is not None
            assert self._extractor.slicer is not None
            return self._extractor.slicer.layout_of(kept)
        return self.layout if submodel is None else submodel.layout

    def _slice_refusal(self, segments: Sequence[ReceivedSegment], submodel: SubmodelSpec | None) -> str | None:
        """Why these segments cannot be slices of one update, None if they can, or are no slices."""
        sizes = {segment.kept for segment in segments}
        if sizes <= {()}:
            return None
        slicer = None if self._extractor is None or submodel is not None else self._extractor.slicer
        if slicer is None or len(sizes) > 1:
            return "it covers only a part of what it should"
        return slicer.refusal(*sizes)

    def update_refusal(self, segments: Sequence[ReceivedSegment], submodel: SubmodelSpec | None) -> str | None:
        """Why these segments cannot be merged, None if they can; called once for each update, before it counts."""
        if (reason := self._slice_refusal(segments, submodel)) is not None:
            return reason
        layout = self._update_layout(segments, submodel)
        for segment in segments:
            params, buffers = layout.layer_slices(segment.first, segment.last)
            *coded, kept = segment.payload.arrays or (None,)
            if not isinstance(kept, np.ndarray):
                return "its payload does not consist of arrays"
            reason = self._codec.payload_refusal(Payload(0, tuple(coded)), params.stop - params.start)
            reason = reason or array_refusal(kept, "buffers", FLOATS, buffers.stop - buffers.start)
            reason = reason or _width_refusal(segment.payload, layout)
            if reason is not None:
                return f"{reason} (layers {segment.first} to {segment.last})"
        return None

    def update_norm(self, segments: Sequence[ReceivedSegment], submodel: SubmodelSpec | None) -> UpdateNorm:
        """The norm of an update that was not refused."""
        layout, params_norm, buffers_norm = self._update_layout(segments, submodel), 0.0, 0.0
        for segment in segments:
            params, _ = layout.layer_slices(segment.first, segment.last)
            *coded, kept = segment.payload.arrays
            params_norm = math.hypot(
                params_norm, self._codec.norm(Payload(0, tuple(coded)), params.stop - params.start)
            )
            buffers_norm = math.hypot(buffers_norm, vector_norm(kept))
        return UpdateNorm(min(params_norm, sys.float_info.max), min(buffers_norm, sys.float_info.max))

    def weights_norm(self) -> UpdateNorm:
        """The norms of the newest version; of buffers as if none were below 1, as new batch-norm variances are."""
        buffers = self.state.buffers.numpy()
        return UpdateNorm(vector_norm(self.state.params.numpy()), max(vector_norm(buffers), math.sqrt(buffers.size)))

    def add_update(
        self,
        segments: Sequence[ReceivedSegment],
        submodel: SubmodelSpec | None,
        samples: int,
        staleness: int,
        scale: UpdateNorm = FULL_LENGTH,
    ) -> None:
        """Add one complete update to the sum, scaled."""
        if self._sum is None:
            self._sum = self._merge.new_sum(self.layout)
        params, buffers = self._assemble_update(segments, self._update_layout(segments, submodel))
        if (kept := segments[0].kept) and self._extractor is not None and self._extractor.slicer is not None:
            params, buffers = self._extractor.slicer.expand(kept, params, buffers)
        if scale != FULL_LENGTH:
            params, buffers = _scaled(params, scale.params), _scaled(buffers, scale.buffers)
        weight = self._merge.update_weight(samples, staleness)
        if submodel is not None:
            submodel.add_update(self._sum, params, buffers, weight)
        elif self._extractor is not None and self._extractor.averages_changed_only:
            changed = params.nonzero().squeeze(1)
            self._sum.add_submodel(params[changed], buffers, weight, changed, torch.arange(len(buffers)))
        else:
            self._sum.add(params, buffers, weight)

    def step(self, lr: float) -> bool:
        """Step the optimizer with the mean of the added updates; the previous version is unchanged.

        Whether the next version is finite; if not, the model stays at the previous one.
        """
        assert self._sum is not None, "a round with no update has no step"
        direction, change = self._sum.mean()
        trained = self._sum.trained_mask()
        self._sum = None
        (group,) = self._optimizer.param_groups
        (param,) = group["params"]
        param.data = param.data.clone()
        param.grad = direction
        group["lr"] = self._settings.lr * lr
        before = None if trained is None else self._optimizer_vectors()
        self._optimizer.step()
        if trained is not None and before is not None:
            self._restore_untrained(~trained, before)
        return self._set_state(ModelState(param.data, self.state.buffers + change))

    def _set_state(self, state: ModelState) -> bool:
        if not (is_finite(state.params.numpy()) and is_finite(state.buffers.numpy())):
            return False
        self.state = state
        if self._reference is not None:
            self._reference.advance(state.params)
        if self._average is not None:
            self._average.add_version(state)
        return True

    def _optimizer_vectors(self) -> dict[str, Tensor]:
        """The optimizer's state per parameter (momentum and the like)."""
        size, state = self.state.params.shape, self._optimizer.state_dict()["state"].get(0, {})
        return {
            name: value.clone() for name, value in state.items() if isinstance(value, Tensor) and value.shape == size
        }

    def _restore_untrained(self, untrained: Tensor, before: dict[str, Tensor]) -> None:
        """Undo the step for entries that no device trained, and for their optimizer state."""
        (param,) = self._optimizer.param_groups[0]["params"]
        param.data[untrained] = self.state.params[untrained]
        for name, value in self._optimizer.state[param].items():
            if isinstance(value, Tensor) and value.shape == untrained.shape:
                value[untrained] = before[name][untrained] if name in before else 0.0

    def start_draft(self) -> ModelDraft:
        """A draft of the next version, to be stepped layer by layer."""
        moments = {name: value for name, value in self._optimizer_state().items() if value is not None}
        return ModelDraft(self.state, moments, self.layout, self._settings, self._merge, self._decode_segment)

    def adopt_draft(self, draft: ModelDraft) -> bool:
        """Make the completed draft the newest version, if it is finite; whether it is."""
        if not self._set_state(draft.state):
            return False
        self._optimizer = self._settings.build_optimizer(self.state.params)
        if draft.optimizer_state:
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": {0: draft.optimizer_state}})
        self._sum = None
        return True

    def _optimizer_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._optimizer.state_dict()["state"].get(0, {})
        return state

    def evaluate(self) -> dict[str, float]:
        """Loss and metrics on the held-out data; nothing if there is none."""
        assert self._test is not None
        if not len(self._test):
            return {}
        score = EvaluationScore(self._replica.loss, self._metrics)
        replica = self._load_replica(self._evaluated_state)
        batches = iter_evaluation_batches(self._test, lambda inputs: next(iter(replica.outputs([(inputs, None)])))[0])
        for outputs, targets in replica.outputs(batches):
            score.add_batch(outputs, targets)
        return score.as_metrics()

    def keep_best(self) -> None:
        """Keep what was evaluated last as the best version so far."""
        self._best_state = self._evaluated_state

    def final_state(self, best: bool = False) -> ModelState:
        """The newest or the best version ready for use: calibrated, with statistics for norms that kept none."""
        assert not best or self._best_state is not None
        replica = self._load_replica(self._best_state if best and self._best_state else self._evaluated_state)
        return ModelState(replica.state.params.clone(), replica.copy_buffers())

    def _load_replica(self, state: ModelState) -> ModelReplica:
        replica = self._replica
        replica.load_layers(0, self.layout.layer_count - 1, state.params, state.buffers)
        replica.sync_counters()
        if self._calibrate is not None:
            self._calibrate(replica)
        return replica

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint must contain, by name."""
        moments = {f"optimizer.{name}": value for name, value in self._optimizer_state().items() if value is not None}
        return {
            "params": self.state.params,
            "buffers": self.state.buffers,
            **moments,
            **self._frozen.checkpoint_tensors(),
            **({} if self._reference is None else self._reference.tensors()),
            **({} if self._average is None else self._average.tensors()),
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """The reverse of `tensors`; RunError if the model has other frozen weights now."""
        self._frozen.check_checkpoint(tensors)
        self.state = ModelState(tensors["params"], tensors["buffers"])
        self._optimizer = self._settings.build_optimizer(self.state.params)
        saved = {
            name.removeprefix("optimizer."): value for name, value in tensors.items() if name.startswith("optimizer.")
        }
        if saved:
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": {0: saved}})
        if self._reference is not None:
            self._reference.restore(tensors)
        if self._average is not None:
            self._average.restore(tensors)

    def _assemble_update(self, segments: Sequence[ReceivedSegment], layout: WeightLayout) -> tuple[Tensor, Tensor]:
        decoded = [self._decode_segment(segment, layout) for segment in sorted(segments)]
        if len(decoded) == 1:
            return decoded[0]
        return torch.cat([params for params, _ in decoded]), torch.cat([buffers for _, buffers in decoded])

    def _decode_segment(self, segment: ReceivedSegment, layout: WeightLayout) -> tuple[Tensor, Tensor]:
        params, _ = layout.layer_slices(segment.first, segment.last)
        *coded, kept = segment.payload.arrays
        vector = self._codec.decode(Payload(0, tuple(coded)), params.stop - params.start)
        return vector, torch.from_numpy(kept)


def _scaled(vector: Tensor, factor: float) -> Tensor:
    """In double precision: the values and the factor may be at opposite ends of what single precision can express."""
    return vector if factor == 1.0 else (vector.double() * factor).to(vector.dtype)


def _width_refusal(payload: Payload, layout: WeightLayout) -> str | None:
    """Values of a wider dtype may be finite and overflow in the model's."""
    wide = [array.dtype for array in payload.arrays if array.dtype.kind == "f" and array.itemsize > layout.itemsize]
    return f"its values are {wide[0]}, wider than the model's own" if wide else None

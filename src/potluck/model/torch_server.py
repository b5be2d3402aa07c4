"""The coordinator's side of a round: holds the model, merges updates one at a time and steps the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from potluck.model.codecs import Codec
from potluck.model.codecs.array_checks import FLOATS, array_refusal
from potluck.model.evaluation_score import EvaluationScore
from potluck.model.indexed_dataset import IndexedDataset
from potluck.model.model_draft import ModelDraft
from potluck.model.model_replica import ModelReplica, ModelTemplate
from potluck.model.model_state import ModelState, WeightLayout
from potluck.model.optimizers import Optimizer
from potluck.model.submodel_interface import SubmodelExtractor, SubmodelSpec, TurnKey
from potluck.model.torch_trainer import ReceivedSegment
from potluck.model.update_merging import MergeRule, UpdateSum
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
        self.state = ModelState.of_module(template.module, template.layout)
        self._merge = merge
        self._codec = codec
        self._extractor = extractor
        self._calibrate = None if extractor is None else extractor.calibration_hook()
        self._settings = optimizer
        self._optimizer = optimizer.build_optimizer(self.state.params)
        self._sum: UpdateSum | None = None
        self._test = test
        self._replica = template.new_replica()

    def select_submodel(self, turn: TurnKey) -> SubmodelSpec | None:
        """The sub-model of a turn; None for the whole model."""
        return None if self._extractor is None else self._extractor.select_submodel(turn)

    def encode_segment(self, state: ModelState, submodel: SubmodelSpec | None, first: int, last: int) -> Payload:
        """Some layers of a version of the model, ready to be sent."""
        if submodel is None:
            params, buffers = self.layout.layer_slices(first, last)
            vectors = state.params[params], state.buffers[buffers]
        else:
            vectors = submodel.gather_layers(state, first, last)
        return Payload(sum(vector.nbytes for vector in vectors), tuple(vector.numpy() for vector in vectors))

    def update_refusal(self, segments: Sequence[ReceivedSegment], submodel: SubmodelSpec | None) -> str | None:
        """Why these segments cannot be merged, None if they can; called once for each update, before it counts."""
        layout = self.layout if submodel is None else submodel.layout
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

    def add_update(
        self, segments: Sequence[ReceivedSegment], submodel: SubmodelSpec | None, samples: int, staleness: int
    ) -> None:
        """Add one complete update to the sum."""
        if self._sum is None:
            self._sum = self._merge.new_sum(self.layout)
        params, buffers = self._assemble_update(segments, self.layout if submodel is None else submodel.layout)
        weight = self._merge.update_weight(samples, staleness)
        if submodel is not None:
            submodel.add_update(self._sum, params, buffers, weight)
        elif self._extractor is not None and self._extractor.averages_changed_only:
            changed = params.nonzero().squeeze(1)
            self._sum.add_submodel(params[changed], buffers, weight, changed, torch.arange(len(buffers)))
        else:
            self._sum.add(params, buffers, weight)

    def step(self, lr: float) -> None:
        """Step the optimizer with the mean of the added updates; the previous version is unchanged."""
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
        self.state = ModelState(param.data, self.state.buffers + change)

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

    def adopt_draft(self, draft: ModelDraft) -> None:
        """Make the completed draft the newest version."""
        self.state = draft.state
        self._optimizer = self._settings.build_optimizer(self.state.params)
        if draft.optimizer_state:
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": {0: draft.optimizer_state}})
        self._sum = None

    def _optimizer_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._optimizer.state_dict()["state"].get(0, {})
        return state

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on the held-out data; no accuracy if the targets are not class labels."""
        assert self._test is not None
        score = EvaluationScore()
        for outputs, targets in self._load_replica().outputs(_iter_batches(self._test)):
            score.add_batch(outputs, targets, self._replica.loss)
        return score.as_metrics()

    def final_state(self) -> ModelState:
        """The newest version ready for use: calibrated, with statistics also for norms that kept none in training."""
        replica = self._load_replica()
        return ModelState(replica.state.params.clone(), replica.copy_buffers())

    def _load_replica(self) -> ModelReplica:
        replica = self._replica
        replica.load_layers(0, self.layout.layer_count - 1, self.state.params, self.state.buffers)
        replica.sync_counters()
        if self._calibrate is not None:
            self._calibrate(replica)
        return replica

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint must contain, by name."""
        moments = {f"optimizer.{name}": value for name, value in self._optimizer_state().items() if value is not None}
        return {"params": self.state.params, "buffers": self.state.buffers, **moments}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """The reverse of `tensors`."""
        self.state = ModelState(tensors["params"], tensors["buffers"])
        self._optimizer = self._settings.build_optimizer(self.state.params)
        saved = {
            name.removeprefix("optimizer."): value for name, value in tensors.items() if name.startswith("optimizer.")
        }
        if saved:
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": {0: saved}})

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


def _width_refusal(payload: Payload, layout: WeightLayout) -> str | None:
    """Values of a wider dtype may be finite and overflow in the model's."""
    wide = [array.dtype for array in payload.arrays if array.dtype.kind == "f" and array.itemsize > layout.itemsize]
    return f"its values are {wide[0]}, wider than the model's own" if wide else None


def _iter_batches(samples: IndexedDataset, size: int = 512) -> Iterable[tuple[Tensor, Tensor]]:
    for start in range(0, len(samples), size):
        yield samples.batch(np.arange(start, min(start + size, len(samples))))

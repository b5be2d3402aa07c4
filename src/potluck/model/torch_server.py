"""The coordinator's side of a round: holds the model, takes updates one at a time and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from potluck.model.codecs import Codec
from potluck.model.codecs.array_checks import FLOATS, array_refusal
from potluck.model.indexed_dataset import IndexedDataset
from potluck.model.model_draft import ModelDraft
from potluck.model.model_replica import Loss, ModelReplica
from potluck.model.model_state import ModelState, WeightLayout
from potluck.model.optimizers import Optimizer
from potluck.model.submodel_interface import SubmodelExtractor, SubmodelSpec, TurnKey
from potluck.model.torch_trainer import ReceivedSegment
from potluck.model.update_merging import MergeRule, UpdateSum
from potluck.payload import Payload

__all__ = ["TorchServer"]


class TorchServer:
    """Holds the model, takes updates one at a time and steps."""

    def __init__(
        self,
        module: nn.Module,
        layout: WeightLayout,
        loss: Loss,
        test: IndexedDataset | None,
        merge: MergeRule,
        optimizer: Optimizer,
        codec: Codec,
        carver: SubmodelExtractor | None = None,
    ) -> None:
        self.layout = layout
        self.state = ModelState.of_module(module, layout)
        self._merge = merge
        self._codec = codec
        self._extractor = carver
        self._calibrate = None if carver is None else carver.calibration_hook()
        self._settings = optimizer
        self._optimizer = optimizer.build_optimizer(self.state.params)
        self._sum: UpdateSum | None = None
        self._test = test
        self._replica = ModelReplica(module, layout, loss)

    def select_submodel(self, whom: TurnKey) -> SubmodelSpec | None:
        """Which part of the model a turn is about; None for all of it."""
        return None if self._extractor is None else self._extractor.select_submodel(whom)

    def encode_segment(self, state: ModelState, part: SubmodelSpec | None, first: int, last: int) -> Payload:
        """Some layers of a version of the model, as they go on the wire."""
        if part is None:
            params, buffers = self.layout.layer_slices(first, last)
            numbers = state.params[params], state.buffers[buffers]
        else:
            numbers = part.gather_layers(state, first, last)
        return Payload(sum(vector.nbytes for vector in numbers), tuple(vector.numpy() for vector in numbers))

    def update_refusal(self, pieces: Sequence[ReceivedSegment], part: SubmodelSpec | None) -> str | None:
        """Why these pieces cannot be merged, if so; asked once for each update, before it counts."""
        layout = self.layout if part is None else part.layout
        for piece in pieces:
            params, buffers = layout.layer_slices(piece.first, piece.last)
            *coded, kept = piece.payload.arrays or (None,)
            if not isinstance(kept, np.ndarray):
                return "its payload is not made of arrays"
            reason = self._codec.payload_refusal(Payload(0, tuple(coded)), params.stop - params.start)
            reason = reason or array_refusal(kept, "buffers", FLOATS, buffers.stop - buffers.start)
            reason = reason or _width_refusal(piece.payload, layout)
            if reason is not None:
                return f"{reason} (layers {piece.first} to {piece.last})"
        return None

    def add_update(
        self, pieces: Sequence[ReceivedSegment], part: SubmodelSpec | None, samples: int, staleness: int
    ) -> None:
        """Put one whole update into the sum."""
        if self._sum is None:
            self._sum = self._merge.new_sum(self.layout)
        params, buffers = self._assemble_update(pieces, self.layout if part is None else part.layout)
        weight = self._merge.update_weight(samples, staleness)
        if part is not None:
            part.add_update(self._sum, params, buffers, weight)
        elif self._extractor is not None and self._extractor.averages_changed_only:
            moved = params.nonzero().squeeze(1)
            self._sum.add_submodel(params[moved], buffers, weight, moved, torch.arange(len(buffers)))
        else:
            self._sum.add(params, buffers, weight)

    def step(self, lr: float) -> None:
        """Go down the mean of what was added; the version before stays as it was."""
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
        """What the optimizer remembers of each parameter (momentum and the like)."""
        size, state = self.state.params.shape, self._optimizer.state_dict()["state"].get(0, {})
        return {
            name: value.clone() for name, value in state.items() if isinstance(value, Tensor) and value.shape == size
        }

    def _restore_untrained(self, untrained: Tensor, before: dict[str, Tensor]) -> None:
        """What nobody trained stays as it was, and so does what the optimizer remembers of it."""
        (param,) = self._optimizer.param_groups[0]["params"]
        param.data[untrained] = self.state.params[untrained]
        for name, value in self._optimizer.state[param].items():
            if isinstance(value, Tensor) and value.shape == untrained.shape:
                value[untrained] = before[name][untrained] if name in before else 0.0

    def start_draft(self) -> ModelDraft:
        """The next version in the making, to be stepped layer by layer."""
        memory = {name: value for name, value in self._optimizer_state().items() if value is not None}
        return ModelDraft(self.state, memory, self.layout, self._settings, self._merge, self._decode_segment)

    def adopt_draft(self, draft: ModelDraft) -> None:
        """The draft is whole and becomes the newest version."""
        self.state = draft.state
        self._optimizer = self._settings.build_optimizer(self.state.params)
        if draft.optimizer_state:
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": {0: draft.optimizer_state}})
        self._sum = None

    def _optimizer_state(self) -> dict[str, Any]:
        found: dict[str, Any] = self._optimizer.state_dict()["state"].get(0, {})
        return found

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on the held-out data; no accuracy for targets that are no classes."""
        assert self._test is not None
        return _score_outputs(self._load_replica().outputs(_iter_batches(self._test)), self._replica.loss)

    def final_state(self) -> ModelState:
        """The newest version as one uses it: calibrated, and norms whose training kept no statistics have some."""
        settled = self._load_replica()
        return ModelState(settled.state.params.clone(), settled.copy_buffers())

    def _load_replica(self) -> ModelReplica:
        replica = self._replica
        replica.load_layers(0, self.layout.layer_count - 1, self.state.params, self.state.buffers)
        replica.sync_counters()
        if self._calibrate is not None:
            self._calibrate(replica)
        return replica

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint must hold, by name."""
        found = {"params": self.state.params, "buffers": self.state.buffers}
        for name, value in self._optimizer_state().items():
            if value is not None:
                found[f"optimizer.{name}"] = value
        return found

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """The reverse of `tensors`."""
        self.state = ModelState(tensors["params"], tensors["buffers"])
        self._optimizer = self._settings.build_optimizer(self.state.params)
        saved = {
            name.removeprefix("optimizer."): value for name, value in tensors.items() if name.startswith("optimizer.")
        }
        if saved:
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": {0: saved}})

    def _assemble_update(self, pieces: Sequence[ReceivedSegment], layout: WeightLayout) -> tuple[Tensor, Tensor]:
        decoded = [self._decode_segment(piece, layout) for piece in sorted(pieces)]
        if len(decoded) == 1:
            return decoded[0]
        return torch.cat([params for params, _ in decoded]), torch.cat([buffers for _, buffers in decoded])

    def _decode_segment(self, piece: ReceivedSegment, layout: WeightLayout) -> tuple[Tensor, Tensor]:
        params, _ = layout.layer_slices(piece.first, piece.last)
        *coded, kept = piece.payload.arrays
        vector = self._codec.decode(Payload(0, tuple(coded)), params.stop - params.start)
        return vector, torch.from_numpy(kept)


def _width_refusal(payload: Payload, layout: WeightLayout) -> str | None:
    """Numbers that are wider than the model's may be finite, and no longer so in the model."""
    wide = [array.dtype for array in payload.arrays if array.dtype.kind == "f" and array.itemsize > layout.itemsize]
    return f"its numbers are {wide[0]}, wider than the model's own" if wide else None


def _iter_batches(samples: IndexedDataset, size: int = 512) -> Iterable[tuple[Tensor, Tensor]]:
    for start in range(0, len(samples), size):
        yield samples.batch(np.arange(start, min(start + size, len(samples))))


def _score_outputs(outputs: Iterable[tuple[Any, Tensor]], loss: Callable[[Any, Tensor], Tensor]) -> dict[str, float]:
    total, right, count, classes = 0.0, 0, 0, True
    for output, targets in outputs:
        total += float(loss(output, targets)) * len(targets)
        count += len(targets)
        classes = classes and isinstance(output, Tensor) and output.ndim == 2 and targets.dtype == torch.int64
        if classes:
            right += int((output.argmax(1) == targets).sum())
    score = {"loss": total / count}
    return {**score, "accuracy": right / count} if classes else score

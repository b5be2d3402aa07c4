"""A draft of a model's next version, stepped a segment at a time with the same result as a single step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from potluck.model.model_state import ModelState, WeightLayout
from potluck.model.optimizers import Optimizer
from potluck.model.torch_trainer import ReceivedSegment
from potluck.model.update_merging import MergeRule, UpdateSum

if TYPE_CHECKING:
    Decode = Callable[[ReceivedSegment, WeightLayout], tuple[Tensor, Tensor]]

__all__ = ["ModelDraft"]


class ModelDraft:
    """Optimizers work entry by entry, so a slice of the vector can be stepped alone, with its slice of the moments."""

    def __init__(
        self,
        state: ModelState,
        moments: dict[str, Any],
        layout: WeightLayout,
        settings: Optimizer,
        merge: MergeRule,
        decode: Decode,
    ) -> None:
        self.state = ModelState(state.params.clone(), state.buffers.clone())
        self.optimizer_state = {name: _copy_value(value) for name, value in moments.items()}
        self._before = moments
        self._layout = layout
        self._settings = settings
        self._merge = merge
        self._decode = decode
        # By identity of the payload, so that a segment is decoded once.
        self._decoded: dict[int, tuple[ReceivedSegment, Tensor, Tensor]] = {}

    def step(self, first: int, last: int, updates: Sequence[tuple[Sequence[ReceivedSegment], int]], lr: float) -> None:
        """Merge the layers `first` to `last` of these updates (segments and sample counts), and step them."""
        params, buffers = self._layout.layer_slices(first, last)
        total = UpdateSum(self._layout, params.stop - params.start, buffers.stop - buffers.start)
        for segments, samples in updates:
            update, change = self._layer_update(segments, first, last)
            total.add(update, change, self._merge.update_weight(samples, 0))
        direction, change = total.mean()
        self._step_entries(params, direction, lr)
        self.state.buffers[buffers] += change

    def _step_entries(self, entries: slice, direction: Tensor, lr: float) -> None:
        values = self.state.params[entries].clone()
        optimizer = self._settings.build_optimizer(values)
        (group,) = optimizer.param_groups
        (param,) = group["params"]
        full = self.state.params.shape
        sliced = {
            name: _copy_value(value[entries] if isinstance(value, Tensor) and value.shape == full else value)
            for name, value in self._before.items()
        }
        if sliced:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: sliced}})
        param.grad = direction
        group["lr"] = self._settings.lr * lr
        optimizer.step()
        self.state.params[entries] = param.data
        for name, value in optimizer.state_dict()["state"].get(0, {}).items():
            if isinstance(value, Tensor) and value.shape == direction.shape and value.ndim == 1:
                if not isinstance(self.optimizer_state.get(name), Tensor):
                    self.optimizer_state[name] = torch.zeros_like(self.state.params)
                self.optimizer_state[name][entries] = value
            else:
                self.optimizer_state[name] = value

    def _layer_update(self, segments: Sequence[ReceivedSegment], first: int, last: int) -> tuple[Tensor, Tensor]:
        """The update of these layers, from the segments that contain them."""
        updates = []
        for segment in sorted(segments):
            low, high = max(first, segment.first), min(last, segment.last)
            if low <= high:
                decoded = self._decode_once(segment)
                whole = self._layout.layer_slices(segment.first, segment.last)
                wanted = self._layout.layer_slices(low, high)
                params, buffers = (
                    vector[inner.start - outer.start : inner.stop - outer.start]
                    for vector, outer, inner in zip(decoded, whole, wanted, strict=True)
                )
                updates.append((params, buffers))
        if len(updates) == 1:
            return updates[0]
        return torch.cat([params for params, _ in updates]), torch.cat([buffers for _, buffers in updates])

    def _decode_once(self, segment: ReceivedSegment) -> tuple[Tensor, Tensor]:
        key = id(segment.payload)
        if key not in self._decoded:
            self._decoded[key] = (segment, *self._decode(segment, self._layout))
        return self._decoded[key][1:]


def _copy_value(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value

"""The next version of a model in the making: stepped a stretch of layers at a time, bit for bit as in one go."""

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
    """Optimizers work entry by entry, so a slice of the vector can be stepped alone; its memory is sliced likewise."""

    def __init__(
        self,
        state: ModelState,
        memory: dict[str, Any],
        layout: WeightLayout,
        settings: Optimizer,
        merge: MergeRule,
        decode: Decode,
    ) -> None:
        self.state = ModelState(state.params.clone(), state.buffers.clone())
        self.optimizer_state = {
            name: value.clone() if isinstance(value, Tensor) else value for name, value in memory.items()
        }
        self._before = memory
        self._layout = layout
        self._settings = settings
        self._merge = merge
        self._decode = decode
        self._decoded: dict[
            int, tuple[ReceivedSegment, Tensor, Tensor]
        ] = {}  # by identity, so that a piece is decoded once

    def step(self, first: int, last: int, updates: Sequence[tuple[Sequence[ReceivedSegment], int]], lr: float) -> None:
        """Merge the layers `first` to `last` of these updates (pieces and samples), and go down."""
        params, buffers = self._layout.layer_slices(first, last)
        total = UpdateSum(self._layout, params.stop - params.start, buffers.stop - buffers.start)
        for pieces, samples in updates:
            update, change = self._layer_update(pieces, first, last)
            total.add(update, change, self._merge.update_weight(samples, 0))
        direction, change = total.mean()
        self._step_entries(params, direction, lr)
        self.state.buffers[buffers] += change

    def _step_entries(self, at: slice, direction: Tensor, lr: float) -> None:
        values = self.state.params[at].clone()
        optimizer = self._settings.build_optimizer(values)
        (group,) = optimizer.param_groups
        (param,) = group["params"]
        whole = self.state.params.shape
        mine = {
            name: value[at].clone() if isinstance(value, Tensor) and value.shape == whole else _copy_value(value)
            for name, value in self._before.items()
        }
        if mine:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: mine}})
        param.grad = direction
        group["lr"] = self._settings.lr * lr
        optimizer.step()
        self.state.params[at] = param.data
        for name, value in optimizer.state_dict()["state"].get(0, {}).items():
            if isinstance(value, Tensor) and value.shape == direction.shape and value.ndim == 1:
                if not isinstance(self.optimizer_state.get(name), Tensor):
                    self.optimizer_state[name] = torch.zeros_like(self.state.params)
                self.optimizer_state[name][at] = value
            else:
                self.optimizer_state[name] = value

    def _layer_update(self, pieces: Sequence[ReceivedSegment], first: int, last: int) -> tuple[Tensor, Tensor]:
        """The numbers of these layers, from whichever pieces hold them."""
        found = []
        for piece in sorted(pieces):
            low, high = max(first, piece.first), min(last, piece.last)
            if low <= high:
                params, buffers = self._decode_once(piece)
                begin, kept = self._layout.layer_slices(piece.first, piece.last)
                at, keep = self._layout.layer_slices(low, high)
                found.append(
                    (
                        params[at.start - begin.start : at.stop - begin.start],
                        buffers[keep.start - kept.start : keep.stop - kept.start],
                    )
                )
        if len(found) == 1:
            return found[0]
        return torch.cat([params for params, _ in found]), torch.cat([buffers for _, buffers in found])

    def _decode_once(self, piece: ReceivedSegment) -> tuple[Tensor, Tensor]:
        key = id(piece.payload)
        if key not in self._decoded:
            self._decoded[key] = (piece, *self._decode(piece, self._layout))
        return self._decoded[key][1:]


def _copy_value(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value

"""The next version of a model in the making: stepped a stretch of layers at a time, bit for bit as in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from potluck.model.merge import Merge, Sum
from potluck.model.optimizers import Optimizer
from potluck.model.state import Layout, State
from potluck.model.trainer import Piece

if TYPE_CHECKING:
    Decode = Callable[[Piece, Layout], tuple[Tensor, Tensor]]

__all__ = ["Draft"]


class Draft:
    """Optimizers work entry by entry, so a slice of the vector can be stepped alone; its memory is sliced likewise."""

    def __init__(
        self, state: State, memory: dict[str, Any], layout: Layout, settings: Optimizer, merge: Merge, decode: Decode
    ) -> None:
        self.state = State(state.params.clone(), state.buffers.clone())
        self.memory = {name: value.clone() if isinstance(value, Tensor) else value for name, value in memory.items()}
        self._before = memory
        self._layout = layout
        self._settings = settings
        self._merge = merge
        self._decode = decode
        self._decoded: dict[int, tuple[Piece, Tensor, Tensor]] = {}  # by identity, so that a piece is decoded once

    def step(self, first: int, last: int, updates: Sequence[tuple[Sequence[Piece], int]], lr: float) -> None:
        """Merge the layers `first` to `last` of these updates (pieces and samples), and go down."""
        params, buffers = self._layout.slices(first, last)
        total = Sum(self._layout, params.stop - params.start, buffers.stop - buffers.start)
        for pieces, samples in updates:
            update, change = self._cut(pieces, first, last)
            total.add(update, change, self._merge.weight(samples, 0))
        direction, change = total.mean()
        self._descend(params, direction, lr)
        self.state.buffers[buffers] += change

    def _descend(self, at: slice, direction: Tensor, lr: float) -> None:
        values = self.state.params[at].clone()
        optimizer = self._settings.build(values)
        (group,) = optimizer.param_groups
        (param,) = group["params"]
        whole = self.state.params.shape
        mine = {
            name: value[at].clone() if isinstance(value, Tensor) and value.shape == whole else _copied(value)
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
                if not isinstance(self.memory.get(name), Tensor):
                    self.memory[name] = torch.zeros_like(self.state.params)
                self.memory[name][at] = value
            else:
                self.memory[name] = value

    def _cut(self, pieces: Sequence[Piece], first: int, last: int) -> tuple[Tensor, Tensor]:
        """The numbers of these layers, from whichever pieces hold them."""
        found = []
        for piece in sorted(pieces):
            low, high = max(first, piece.first), min(last, piece.last)
            if low <= high:
                params, buffers = self._numbers(piece)
                begin, kept = self._layout.slices(piece.first, piece.last)
                at, keep = self._layout.slices(low, high)
                found.append(
                    (
                        params[at.start - begin.start : at.stop - begin.start],
                        buffers[keep.start - kept.start : keep.stop - kept.start],
                    )
                )
        if len(found) == 1:
            return found[0]
        return torch.cat([params for params, _ in found]), torch.cat([buffers for _, buffers in found])

    def _numbers(self, piece: Piece) -> tuple[Tensor, Tensor]:
        key = id(piece.payload)
        if key not in self._decoded:
            self._decoded[key] = (piece, *self._decode(piece, self._layout))
        return self._decoded[key][1:]


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value

"""The coordinator's side of a round: holds the model, takes updates one at a time and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from potluck.model.batches import Batches
from potluck.model.carving import Carver, Part, Turn
from potluck.model.codecs import Codec
from potluck.model.codecs.checks import FLOATS, array_refusal
from potluck.model.draft import Draft
from potluck.model.merge import Merge, Sum
from potluck.model.optimizers import Optimizer
from potluck.model.replica import Loss, Replica
from potluck.model.state import Layout, State
from potluck.model.trainer import Piece
from potluck.payload import Payload

__all__ = ["Server"]


class Server:
    """Holds the model, takes updates one at a time and steps."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        loss: Loss,
        test: Batches | None,
        merge: Merge,
        optimizer: Optimizer,
        codec: Codec,
        carver: Carver | None = None,
    ) -> None:
        self.layout = layout
        self.state = State.of(module, layout)
        self._merge = merge
        self._codec = codec
        self._carver = carver
        self._calibrate = None if carver is None else carver.calibration()
        self._settings = optimizer
        self._optimizer = optimizer.build(self.state.params)
        self._sum: Sum | None = None
        self._test = test
        self._replica = Replica(module, layout, loss)

    def select(self, whom: Turn) -> Part | None:
        """Which part of the model a turn is about; None for all of it."""
        return None if self._carver is None else self._carver.select(whom)

    def segment(self, state: State, part: Part | None, first: int, last: int) -> Payload:
        """Some layers of a version of the model, as they go on the wire."""
        if part is None:
            params, buffers = self.layout.slices(first, last)
            numbers = state.params[params], state.buffers[buffers]
        else:
            numbers = part.cut(state, first, last)
        return Payload(sum(vector.nbytes for vector in numbers), tuple(vector.numpy() for vector in numbers))

    def refusal(self, pieces: Sequence[Piece], part: Part | None) -> str | None:
        """Why these pieces cannot be merged, if so; asked once for each update, before it counts."""
        layout = self.layout if part is None else part.layout
        for piece in pieces:
            params, buffers = layout.slices(piece.first, piece.last)
            *coded, kept = piece.payload.arrays or (None,)
            if not isinstance(kept, np.ndarray):
                return "its payload is not made of arrays"
            reason = self._codec.refusal(Payload(0, tuple(coded)), params.stop - params.start)
            reason = reason or array_refusal(kept, "buffers", FLOATS, buffers.stop - buffers.start)
            reason = reason or _width_refusal(piece.payload, layout)
            if reason is not None:
                return f"{reason} (layers {piece.first} to {piece.last})"
        return None

    def add(self, pieces: Sequence[Piece], part: Part | None, samples: int, staleness: int) -> None:
        """Put one whole update into the sum."""
        if self._sum is None:
            self._sum = self._merge.begin(self.layout)
        params, buffers = self._assemble(pieces, self.layout if part is None else part.layout)
        weight = self._merge.weight(samples, staleness)
        if part is not None:
            part.add_to(self._sum, params, buffers, weight)
        elif self._carver is not None and self._carver.unmoved_is_untrained:
            moved = params.nonzero().squeeze(1)
            self._sum.add_part(params[moved], buffers, weight, moved, torch.arange(len(buffers)))
        else:
            self._sum.add(params, buffers, weight)

    def step(self, lr: float) -> None:
        """Go down the mean of what was added; the version before stays as it was."""
        assert self._sum is not None, "a round with no update has no step"
        direction, change = self._sum.mean()
        trained = self._sum.trained()
        self._sum = None
        (group,) = self._optimizer.param_groups
        (param,) = group["params"]
        param.data = param.data.clone()
        param.grad = direction
        group["lr"] = self._settings.lr * lr
        before = None if trained is None else self._optimizer_vectors()
        self._optimizer.step()
        if trained is not None and before is not None:
            self._leave_alone(~trained, before)
        self.state = State(param.data, self.state.buffers + change)

    def _optimizer_vectors(self) -> dict[str, Tensor]:
        """What the optimizer remembers of each parameter (momentum and the like)."""
        size, state = self.state.params.shape, self._optimizer.state_dict()["state"].get(0, {})
        return {
            name: value.clone() for name, value in state.items() if isinstance(value, Tensor) and value.shape == size
        }

    def _leave_alone(self, untrained: Tensor, before: dict[str, Tensor]) -> None:
        """What nobody trained stays as it was, and so does what the optimizer remembers of it."""
        (param,) = self._optimizer.param_groups[0]["params"]
        param.data[untrained] = self.state.params[untrained]
        for name, value in self._optimizer.state[param].items():
            if isinstance(value, Tensor) and value.shape == untrained.shape:
                value[untrained] = before[name][untrained] if name in before else 0.0

    def draft(self) -> Draft:
        """The next version in the making, to be stepped layer by layer."""
        memory = {name: value for name, value in self._remembered().items() if value is not None}
        return Draft(self.state, memory, self.layout, self._settings, self._merge, self._decode)

    def adopt(self, draft: Draft) -> None:
        """The draft is whole and becomes the newest version."""
        self.state = draft.state
        self._optimizer = self._settings.build(self.state.params)
        if draft.memory:
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": {0: draft.memory}})
        self._sum = None

    def _remembered(self) -> dict[str, Any]:
        found: dict[str, Any] = self._optimizer.state_dict()["state"].get(0, {})
        return found

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on the held-out data; no accuracy for targets that are no classes."""
        assert self._test is not None
        return _score(self._settled().outputs(_in_batches(self._test)), self._replica.loss)

    def finished(self) -> State:
        """The newest version as one uses it: calibrated, and norms whose training kept no statistics have some."""
        settled = self._settled()
        return State(settled.numbers.params.clone(), settled.state_buffers())

    def _settled(self) -> Replica:
        replica = self._replica
        replica.load(0, self.layout.layers - 1, self.state.params, self.state.buffers)
        replica.settle()
        if self._calibrate is not None:
            self._calibrate(replica)
        return replica

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint must hold, by name."""
        found = {"params": self.state.params, "buffers": self.state.buffers}
        for name, value in self._remembered().items():
            if value is not None:
                found[f"optimizer.{name}"] = value
        return found

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """The reverse of `tensors`."""
        self.state = State(tensors["params"], tensors["buffers"])
        self._optimizer = self._settings.build(self.state.params)
        saved = {
            name.removeprefix("optimizer."): value for name, value in tensors.items() if name.startswith("optimizer.")
        }
        if saved:
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": {0: saved}})

    def _assemble(self, pieces: Sequence[Piece], layout: Layout) -> tuple[Tensor, Tensor]:
        decoded = [self._decode(piece, layout) for piece in sorted(pieces)]
        if len(decoded) == 1:
            return decoded[0]
        return torch.cat([params for params, _ in decoded]), torch.cat([buffers for _, buffers in decoded])

    def _decode(self, piece: Piece, layout: Layout) -> tuple[Tensor, Tensor]:
        params, _ = layout.slices(piece.first, piece.last)
        *coded, kept = piece.payload.arrays
        vector = self._codec.decode(Payload(0, tuple(coded)), params.stop - params.start)
        return vector, torch.from_numpy(kept)


def _width_refusal(payload: Payload, layout: Layout) -> str | None:
    """Numbers that are wider than the model's may be finite, and no longer so in the model."""
    wide = [array.dtype for array in payload.arrays if array.dtype.kind == "f" and array.itemsize > layout.itemsize]
    return f"its numbers are {wide[0]}, wider than the model's own" if wide else None


def _in_batches(samples: Batches, size: int = 512) -> Iterable[tuple[Tensor, Tensor]]:
    for start in range(0, len(samples), size):
        yield samples.batch(np.arange(start, min(start + size, len(samples))))


def _score(outputs: Iterable[tuple[Any, Tensor]], loss: Callable[[Any, Tensor], Tensor]) -> dict[str, float]:
    total, right, count, classes = 0.0, 0, 0, True
    for output, targets in outputs:
        total += float(loss(output, targets)) * len(targets)
        count += len(targets)
        classes = classes and isinstance(output, Tensor) and output.ndim == 2 and targets.dtype == torch.int64
        if classes:
            right += int((output.argmax(1) == targets).sum())
    score = {"loss": total / count}
    return {**score, "accuracy": right / count} if classes else score

"""The mathematics of a round: the coordinator's side (Server) and the devices' side (Trainer)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from potluck.errors import ModelError
from potluck.model.codecs import Codec, Dense
from potluck.model.local import Local, Trained
from potluck.model.merge import Merge, Sum
from potluck.model.optimizers import Optimizer
from potluck.model.replica import Draws, Loss, Replica
from potluck.model.state import Layout, State
from potluck.payload import Payload

__all__ = ["Batches", "Piece", "Server", "Share", "Trainer"]

Indices = npt.NDArray[np.int64]


class Batches(Protocol):
    """Samples that can be asked for by index."""

    @property
    def augmentation(self) -> object | None:
        """What needs a generator; None where batches are plain."""

    def __len__(self) -> int: ...

    def batch(self, indices: Indices, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]: ...


class Share(Protocol):
    """A device's part of the data in one turn."""

    @property
    def batches(self) -> Callable[[], Sequence[Indices]]: ...

    @property
    def rng(self) -> Callable[[], np.random.Generator]: ...


class Piece(NamedTuple):
    """The numbers of the layers `first` to `last`, as they came over the wire."""

    first: int
    last: int
    payload: Payload


class Trainer:
    """Trains on behalf of devices; each thread has one replica and uses it for whoever comes next."""

    def __init__(
        self, module: nn.Module, layout: Layout, loss: Loss, samples: Batches, local: Local, codec: Codec
    ) -> None:
        self._module = module
        self.layout = layout
        self._loss = loss
        self._samples = samples
        self._local = local
        self._codec = codec
        self._threads = threading.local()
        self.draws = self._rehearse()

    def train(self, pieces: Sequence[Piece], share: Share, lr: float) -> Trained:
        """Load the model from its pieces and do the device's work on its mini-batches."""
        replica = self._replica()
        for first, last, payload in pieces:
            params, buffers = payload.arrays
            replica.load(first, last, torch.from_numpy(params), torch.from_numpy(buffers))
        replica.settle()
        rng = share.rng() if self.draws or self._samples.augmentation is not None else None
        data = (self._samples.batch(indices, rng) for indices in share.batches())
        return self._local.train(replica, data, rng if self.draws else None, lr)

    def encode(self, trained: Trained, first: int, last: int) -> Payload:
        """The update of some layers, as it goes on the wire."""
        params, buffers = self.layout.slices(first, last)
        coded = self._codec.encode(trained.params[params])
        kept = trained.buffers[buffers].numpy()
        return Payload(coded.nbytes + kept.nbytes, (*coded.arrays, kept))

    def _replica(self) -> Replica:
        replica: Replica | None = getattr(self._threads, "replica", None)
        if replica is None:
            replica = self._threads.replica = Replica(self._module, self.layout, self._loss)
            replica.draws_elsewhere = self._draws_elsewhere
        return replica

    def _rehearse(self) -> bool:
        """One gradient on two samples: shows whether model, loss and data fit, and whether the model draws."""
        inputs, targets = self._samples.batch(np.arange(min(2, len(self._samples))))
        replica = Replica(self._module, self.layout, self._loss)
        try:
            replica.draws_elsewhere = False
            with Draws(0) as draws:
                replica.gradient(inputs, targets, np.random.default_rng(0))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            reason = str(error).strip().splitlines()[0]
            shape = tuple(inputs.shape[1:])
            raise ModelError(f"the model does not fit the data (inputs of shape {shape}): {reason}") from error
        self._draws_elsewhere = bool(draws.drew)
        return self._draws_elsewhere or bool(replica.dropouts)


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
    ) -> None:
        self.layout = layout
        self.state = State.of(module, layout)
        self._merge = merge
        self._codec = codec
        self._dense = Dense()
        self._settings = optimizer
        self._optimizer = optimizer.build(self.state.params)
        self._sum: Sum | None = None
        self._test = test
        self._replica = Replica(module, layout, loss)

    def segment(self, state: State, first: int, last: int) -> Payload:
        """Some layers of a version of the model, as they go on the wire."""
        params, buffers = self.layout.slices(first, last)
        arrays = (state.params[params].numpy(), state.buffers[buffers].numpy())
        return Payload(sum(array.nbytes for array in arrays), arrays)

    def refusal(self, pieces: Sequence[Piece]) -> str | None:
        """Why these pieces cannot be merged, if so; asked once for each update, before it counts."""
        for piece in pieces:
            for array in piece.payload.arrays:
                # One pass and no copy; only where the sum itself runs over does every value have to be looked at.
                if (
                    array.size
                    and not math.isfinite(torch.from_numpy(array).sum().item())
                    and not np.isfinite(array).all()
                ):
                    return "its update has values that are not finite"
        return None

    def add(self, pieces: Sequence[Piece], samples: int, staleness: int) -> None:
        """Put one whole update into the sum."""
        if self._sum is None:
            self._sum = self._merge.begin(self.layout)
        params, buffers = self._assemble(pieces)
        self._sum.add(params, buffers, self._merge.weight(samples, staleness))

    def step(self, lr: float) -> None:
        """Go down the mean of what was added; the version before stays as it was."""
        assert self._sum is not None, "a round with no update has no step"
        direction, change = self._sum.mean()
        self._sum = None
        (group,) = self._optimizer.param_groups
        (param,) = group["params"]
        param.data = param.data.clone()
        param.grad = direction
        group["lr"] = self._settings.lr * lr
        self._optimizer.step()
        self.state = State(param.data, self.state.buffers + change)

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on the held-out data; no accuracy for targets that are no classes."""
        assert self._test is not None
        replica = self._replica
        replica.load(0, self.layout.layers - 1, self.state.params, self.state.buffers)
        replica.settle()
        return _score(replica.outputs(_in_batches(self._test)), replica.loss)

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint must hold, by name."""
        found = {"params": self.state.params, "buffers": self.state.buffers}
        for name, value in self._optimizer.state_dict()["state"].get(0, {}).items():
            if value is not None:
                found[f"optimizer.{name}"] = value
        return found

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """The reverse of `tensors`."""
        self.state = State(tensors["params"], tensors["buffers"])
        self._optimizer = self._settings.build(self.state.params)
        saved = {name.removeprefix("optimizer."): value for name, value in tensors.items() if "." in name}
        if saved:
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": {0: saved}})

    def _assemble(self, pieces: Sequence[Piece]) -> tuple[Tensor, Tensor]:
        decoded = [self._decode(piece) for piece in sorted(pieces)]
        if len(decoded) == 1:
            return decoded[0]
        return torch.cat([params for params, _ in decoded]), torch.cat([buffers for _, buffers in decoded])

    def _decode(self, piece: Piece) -> tuple[Tensor, Tensor]:
        params, _ = self.layout.slices(piece.first, piece.last)
        *coded, kept = piece.payload.arrays
        vector = self._codec.decode(Payload(0, tuple(coded)), params.stop - params.start)
        return vector, torch.from_numpy(kept)


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

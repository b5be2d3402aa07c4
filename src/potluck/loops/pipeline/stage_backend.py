"""What the pipeline asks of the mathematics; `potluck.model.torch_stages` does it, `GhostStages` only has its sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.payload import Payload

__all__ = ["MicroBatchSizes", "StageBackend", "TimingOnlyStages", "join_payload", "split_payload"]


class MicroBatchSizes(Protocol):
    """How large the parts of a batch are."""

    @property
    def size(self) -> int: ...

    def count(self, part: int) -> int: ...


class StageBackend(Protocol):
    """Functions of what they are given; numbers are versions of some layers and never changed in place."""

    def load_inputs(self, part: int) -> Payload: ...

    def load_labels(self, part: int) -> Payload: ...

    def forward(
        self, numbers: Any, buffers: Any, part: int, arrived: Payload, labels: Payload | None, ahead: float = 0.0
    ) -> Any:
        """A pass with `payload` (None on the last stage), `buffers` and `loss_now`; with weights `ahead` steps on."""

    def backward(self, forwarded: Any, gradient: Payload | None) -> tuple[Any, Payload]: ...

    def micro_batch_weight(self, part: int) -> float: ...

    def accumulate_gradient(self, total: Any, gradient: Any, share: float) -> Any: ...

    def initial_weights(self) -> Any: ...

    def step(self, numbers: Any, gradient: Any, buffers: Any, lr: float) -> Any: ...

    def average_versions(self, versions: Sequence[Any]) -> Any: ...

    def pack_layers(self, numbers: Any, first: int, last: int, moments: bool = True) -> Payload: ...

    def join_layers(self, first: int, last: int, pieces: Sequence[tuple[int, int, Payload]]) -> Any: ...

    def pack_step(self, gradient: Any, buffers: Any) -> Payload: ...

    def apply_step(self, numbers: Any, payload: Payload, lr: float) -> Any: ...

    def activation_refusal(self, first: int, samples: int, payload: Payload) -> str | None:
        """Why this cannot be what arrives before a layer with so many samples; so are the next three."""

    def labels_refusal(self, samples: int, payload: Payload) -> str | None: ...

    def gradient_refusal(self, forwarded: Any, payload: Payload) -> str | None: ...

    def weights_refusal(self, first: int, last: int, payload: Payload, step: bool = False) -> str | None: ...

    @property
    def evaluation_batches(self) -> int:
        """Held-out batches that can be measured stage by stage; 0 where the model must be measured as a whole."""

    def evaluation_batch_size(self, number: int) -> int: ...

    def evaluation_inputs(self, number: int) -> Payload: ...

    def evaluation_labels(self, number: int) -> Payload: ...

    def evaluate_batch(self, numbers: Any, arrived: Payload) -> Payload: ...

    def evaluation_score(self, outputs: Payload, labels: Payload) -> tuple[float, int, int]:
        """Loss times samples, how many are right (below 0: no classes), samples."""

    def tensors(self, numbers: Any) -> dict[str, Any]: ...

    def restore(self, tensors: Mapping[str, Any]) -> Any: ...


class _TimingOnlyWeights(NamedTuple):
    """Numbers that are only there."""

    first: int
    last: int
    buffers: None = None


class _TimingOnlyPass(NamedTuple):
    weights: _TimingOnlyWeights
    micro_batch: int
    payload: Payload | None
    buffers: None = None
    loss_now: float | None = None


class TimingOnlyStages:
    """The same bytes, no numbers."""

    def __init__(self, costs: PipelineCosts, sizes: MicroBatchSizes) -> None:
        self._costs = costs
        self._sizes = sizes

    def load_inputs(self, part: int) -> Payload:
        return Payload(0)

    def load_labels(self, part: int) -> Payload:
        return Payload(self._costs.label_bytes * self._sizes.count(part))

    def forward(
        self,
        numbers: _TimingOnlyWeights,
        buffers: Any,
        part: int,
        arrived: Payload,
        labels: Payload | None,
        ahead: float = 0.0,
    ) -> _TimingOnlyPass:
        size = self._costs.cut_transfer_bytes(numbers.last, self._sizes.count(part)) if labels is None else 0
        return _TimingOnlyPass(numbers, part, Payload(size) if labels is None else None)

    def backward(self, forwarded: _TimingOnlyPass, gradient: Payload | None) -> tuple[_TimingOnlyWeights, Payload]:
        first, samples = forwarded.weights.first, self._sizes.count(forwarded.micro_batch)
        return forwarded.weights, Payload(self._costs.cut_transfer_bytes(first - 1, samples) if first else 0)

    def micro_batch_weight(self, part: int) -> float:
        return self._sizes.count(part) / self._sizes.size

    def accumulate_gradient(self, total: Any, gradient: Any, share: float) -> Any:
        return gradient

    def initial_weights(self) -> _TimingOnlyWeights:
        return _TimingOnlyWeights(0, self._costs.layer_count - 1)

    def step(self, numbers: _TimingOnlyWeights, gradient: Any, buffers: Any, lr: float) -> _TimingOnlyWeights:
        return numbers

    def average_versions(self, versions: Sequence[_TimingOnlyWeights]) -> _TimingOnlyWeights:
        return versions[-1]

    def pack_layers(self, numbers: _TimingOnlyWeights, first: int, last: int, moments: bool = True) -> Payload:
        return Payload(self._costs.state_bytes(first, last, moments))

    def join_layers(self, first: int, last: int, pieces: Sequence[tuple[int, int, Payload]]) -> _TimingOnlyWeights:
        return _TimingOnlyWeights(first, last)

    def pack_step(self, gradient: _TimingOnlyWeights, buffers: Any) -> Payload:
        return Payload(self._costs.step_bytes(gradient.first, gradient.last))

    def apply_step(self, numbers: _TimingOnlyWeights, payload: Payload, lr: float) -> _TimingOnlyWeights:
        return numbers

    def activation_refusal(self, first: int, samples: int, payload: Payload) -> str | None:
        return None

    def labels_refusal(self, samples: int, payload: Payload) -> str | None:
        return None

    def gradient_refusal(self, forwarded: _TimingOnlyPass, payload: Payload) -> str | None:
        return None

    def weights_refusal(self, first: int, last: int, payload: Payload, step: bool = False) -> str | None:
        return None

    evaluation_batches = 0

    def evaluation_batch_size(self, number: int) -> int:
        return 0

    def evaluation_inputs(self, number: int) -> Payload:
        return Payload(0)

    def evaluation_labels(self, number: int) -> Payload:
        return Payload(0)

    def evaluate_batch(self, numbers: _TimingOnlyWeights, arrived: Payload) -> Payload:
        return Payload(0)

    def evaluation_score(self, outputs: Payload, labels: Payload) -> tuple[float, int, int]:
        return 0.0, 0, 0

    def tensors(self, numbers: _TimingOnlyWeights) -> dict[str, Any]:
        return {}

    def restore(self, tensors: Mapping[str, Any]) -> _TimingOnlyWeights:
        return self.initial_weights()


def split_payload(payload: Payload, count: int) -> list[Payload]:
    """A payload in so many pieces of about equal size."""
    return [
        Payload(
            (place + 1) * payload.nbytes // count - place * payload.nbytes // count,
            tuple(array[place * len(array) // count : (place + 1) * len(array) // count] for array in payload.arrays),
        )
        for place in range(count)
    ]


def join_payload(pieces: Sequence[Payload]) -> Payload:
    """The payload that was split."""
    arrays = zip(*(piece.arrays for piece in pieces), strict=True)
    return Payload(sum(piece.nbytes for piece in pieces), tuple(np.concatenate(parts) for parts in arrays))

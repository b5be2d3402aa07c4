"""The interface between the pipeline loop and the tensors (`potluck.model.torch_stages`), and a timing-only one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.payload import Payload

__all__ = ["MicroBatchSizes", "ScoreSums", "StageBackend", "TimingOnlyStages", "join_payload", "split_payload"]


class MicroBatchSizes(Protocol):
    """The sizes of a batch and its micro-batches, in samples."""

    @property
    def size(self) -> int: ...

    def count(self, micro_batch: int) -> int: ...


class ScoreSums(Protocol):
    """The sums of an evaluation on the last stage."""

    def add_batch(self, outputs: Any, labels: Payload) -> None: ...

    @property
    def sums(self) -> tuple[float, int, int]:
        """Loss times samples, correct predictions (below 0: no accuracy), samples."""

    @property
    def positions(self) -> int:
        """What the correct predictions are a fraction of."""

    @property
    def values(self) -> dict[str, float]:
        """The metrics that the task lists."""


class StageBackend(Protocol):
    """Pure functions on weights: versions of some layers, never changed in place."""

    def run_layers(self, samples: int, next_pass: Callable[[], None]) -> None:
        """Run every layer on its own, forward and then backward; `next_pass` is called before each of these passes."""

    def load_inputs(self, micro_batch: int) -> Payload: ...

    def load_labels(self, micro_batch: int) -> Payload: ...

    def forward(
        self,
        weights: Any,
        buffers: Any,
        micro_batch: int,
        inputs: Payload,
        labels: Payload | None,
        predicted_steps: float = 0.0,
        before_layer: Callable[[], None] | None = None,
    ) -> Any:
        """A pass with `payload` (None on the last stage), `buffers` and `loss_now`.

        Calls `before_layer` as each layer begins; `backward` does so too, from the last layer to the first.
        """

    def backward(
        self, forwarded: Any, gradient: Payload | None, before_layer: Callable[[], None] | None = None
    ) -> tuple[Any, Payload]: ...

    def micro_batch_weight(self, micro_batch: int) -> float: ...

    def accumulate_gradient(self, total: Any, gradient: Any, weight: float) -> Any: ...

    def initial_weights(self) -> Any: ...

    def step(self, weights: Any, gradient: Any, buffers: Any, lr: float) -> Any: ...

    def average_versions(self, versions: Sequence[Any]) -> Any: ...

    def pack_layers(self, weights: Any, first: int, last: int, moments: bool = True) -> Payload: ...

    def join_layers(self, first: int, last: int, segments: Sequence[tuple[int, int, Payload]]) -> Any: ...

    def pack_step(self, gradient: Any, buffers: Any) -> Payload: ...

    def apply_step(self, weights: Any, payload: Payload, lr: float) -> Any: ...

    def activation_refusal(self, first: int, samples: int, payload: Payload) -> str | None:
        """Why this cannot be the input of a layer for this many samples. The next three are alike."""

    def labels_refusal(self, samples: int, payload: Payload) -> str | None: ...

    def gradient_refusal(self, forwarded: Any, payload: Payload) -> str | None: ...

    def weights_refusal(self, first: int, last: int, payload: Payload, step: bool = False) -> str | None: ...

    @property
    def evaluation_batches(self) -> int:
        """Held-out batches that can be evaluated stage by stage; 0 if the model must be evaluated as a whole."""

    def evaluation_batch_size(self, number: int) -> int: ...

    def evaluation_inputs(self, number: int) -> Payload: ...

    def evaluation_labels(self, number: int) -> Payload: ...

    def evaluate_batch(self, weights: Any, inputs: Payload) -> Any:
        """A payload for the next stage; on the last one, outputs for the score."""

    def start_score(self) -> ScoreSums:
        """Sums over no batches, for the last stage."""

    def metrics_refusal(self, values: Mapping[str, float]) -> str | None:
        """Why these cannot be the values of the task's metrics."""

    def tensors(self, weights: Any) -> dict[str, Any]: ...

    def restore(self, tensors: Mapping[str, Any]) -> Any: ...


class _TimingOnlyWeights(NamedTuple):
    """Layers without weights."""

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
    """The same bytes, no weights."""

    def __init__(self, costs: PipelineCosts, sizes: MicroBatchSizes) -> None:
        self._costs = costs
        self._sizes = sizes

    def run_layers(self, samples: int, next_pass: Callable[[], None]) -> None:
        for _ in range(2 * self._costs.layer_count):
            next_pass()

    def load_inputs(self, micro_batch: int) -> Payload:
        return Payload(0)

    def load_labels(self, micro_batch: int) -> Payload:
        return Payload(self._costs.label_bytes * self._sizes.count(micro_batch))

    def forward(
        self,
        weights: _TimingOnlyWeights,
        buffers: Any,
        micro_batch: int,
        inputs: Payload,
        labels: Payload | None,
        predicted_steps: float = 0.0,
        before_layer: Callable[[], None] | None = None,
    ) -> _TimingOnlyPass:
        self._announce_layers(weights, before_layer)
        size = self._costs.cut_transfer_bytes(weights.last, self._sizes.count(micro_batch)) if labels is None else 0
        return _TimingOnlyPass(weights, micro_batch, Payload(size) if labels is None else None)

    def backward(
        self, forwarded: _TimingOnlyPass, gradient: Payload | None, before_layer: Callable[[], None] | None = None
    ) -> tuple[_TimingOnlyWeights, Payload]:
        self._announce_layers(forwarded.weights, before_layer)
        first, samples = forwarded.weights.first, self._sizes.count(forwarded.micro_batch)
        return forwarded.weights, Payload(self._costs.cut_transfer_bytes(first - 1, samples) if first else 0)

    def _announce_layers(self, weights: _TimingOnlyWeights, before_layer: Callable[[], None] | None) -> None:
        if before_layer is not None:
            for _ in range(weights.first, weights.last + 1):
                before_layer()

    def micro_batch_weight(self, micro_batch: int) -> float:
        return self._sizes.count(micro_batch) / self._sizes.size

    def accumulate_gradient(self, total: Any, gradient: Any, weight: float) -> Any:
        return gradient

    def initial_weights(self) -> _TimingOnlyWeights:
        return _TimingOnlyWeights(0, self._costs.layer_count - 1)

    def step(self, weights: _TimingOnlyWeights, gradient: Any, buffers: Any, lr: float) -> _TimingOnlyWeights:
        return weights

    def average_versions(self, versions: Sequence[_TimingOnlyWeights]) -> _TimingOnlyWeights:
        return versions[-1]

    def pack_layers(self, weights: _TimingOnlyWeights, first: int, last: int, moments: bool = True) -> Payload:
        return Payload(self._costs.state_bytes(first, last, moments))

    def join_layers(self, first: int, last: int, segments: Sequence[tuple[int, int, Payload]]) -> _TimingOnlyWeights:
        return _TimingOnlyWeights(first, last)

    def pack_step(self, gradient: _TimingOnlyWeights, buffers: Any) -> Payload:
        return Payload(self._costs.step_bytes(gradient.first, gradient.last))

    def apply_step(self, weights: _TimingOnlyWeights, payload: Payload, lr: float) -> _TimingOnlyWeights:
        return weights

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

    def evaluate_batch(self, weights: _TimingOnlyWeights, inputs: Payload) -> Payload:
        return Payload(0)

    def start_score(self) -> ScoreSums:
        raise NotImplementedError("a timing-only run has no held-out batches")

    def metrics_refusal(self, values: Mapping[str, float]) -> str | None:
        return None

    def tensors(self, weights: _TimingOnlyWeights) -> dict[str, Any]:
        return {}

    def restore(self, tensors: Mapping[str, Any]) -> _TimingOnlyWeights:
        return self.initial_weights()


def split_payload(payload: Payload, count: int) -> list[Payload]:
    """A payload in this many chunks of about equal size."""
    return [
        Payload(
            (index + 1) * payload.nbytes // count - index * payload.nbytes // count,
            tuple(array[index * len(array) // count : (index + 1) * len(array) // count] for array in payload.arrays),
        )
        for index in range(count)
    ]


def join_payload(chunks: Sequence[Payload]) -> Payload:
    """The payload that was split."""
    arrays = zip(*(chunk.arrays for chunk in chunks), strict=True)
    return Payload(sum(chunk.nbytes for chunk in chunks), tuple(np.concatenate(slices) for slices in arrays))

"""What the pipeline asks of the mathematics; `potluck.model.stages` does it, `GhostStages` only has its sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from potluck.loops.pipeline.costs import ChainCosts
from potluck.payload import Payload

__all__ = ["GhostStages", "Sizes", "StageMathematics", "join_chunks", "split"]


class Sizes(Protocol):
    """How large the parts of a batch are."""

    @property
    def size(self) -> int: ...

    def count(self, part: int) -> int: ...


class StageMathematics(Protocol):
    """Functions of what they are given; numbers are versions of some layers and never changed in place."""

    def inputs(self, part: int) -> Payload: ...

    def labels(self, part: int) -> Payload: ...

    def forward(
        self, numbers: Any, buffers: Any, part: int, arrived: Payload, labels: Payload | None, ahead: float = 0.0
    ) -> Any:
        """A pass with `payload` (None on the last stage), `buffers` and `loss_now`; with weights `ahead` steps on."""

    def backward(self, forwarded: Any, gradient: Payload | None) -> tuple[Any, Payload]: ...

    def share(self, part: int) -> float: ...

    def mix(self, total: Any, gradient: Any, share: float) -> Any: ...

    def initial(self) -> Any: ...

    def step(self, numbers: Any, gradient: Any, buffers: Any, lr: float) -> Any: ...

    def average(self, versions: Sequence[Any]) -> Any: ...

    def pack(self, numbers: Any, first: int, last: int, moments: bool = True) -> Payload: ...

    def join(self, first: int, last: int, pieces: Sequence[tuple[int, int, Payload]]) -> Any: ...

    def pack_step(self, gradient: Any, buffers: Any) -> Payload: ...

    def redo(self, numbers: Any, payload: Payload, lr: float) -> Any: ...

    def crossing_refusal(self, first: int, samples: int, payload: Payload) -> str | None:
        """Why this cannot be what arrives before a layer with so many samples; so are the next three."""

    def labels_refusal(self, samples: int, payload: Payload) -> str | None: ...

    def gradient_refusal(self, forwarded: Any, payload: Payload) -> str | None: ...

    def numbers_refusal(self, first: int, last: int, payload: Payload, step: bool = False) -> str | None: ...

    @property
    def exams(self) -> int:
        """Held-out batches that can be measured stage by stage; 0 where the model must be measured as a whole."""

    def exam_size(self, number: int) -> int: ...

    def exam_inputs(self, number: int) -> Payload: ...

    def exam_labels(self, number: int) -> Payload: ...

    def examine(self, numbers: Any, arrived: Payload) -> Payload: ...

    def exam_score(self, outputs: Payload, labels: Payload) -> tuple[float, int, int]:
        """Loss times samples, how many are right (below 0: no classes), samples."""

    def tensors(self, numbers: Any) -> dict[str, Any]: ...

    def restore(self, tensors: Mapping[str, Any]) -> Any: ...


class _Ghost(NamedTuple):
    """Numbers that are only there."""

    first: int
    last: int
    buffers: None = None


class _Passed(NamedTuple):
    numbers: _Ghost
    part: int
    payload: Payload | None
    buffers: None = None
    loss_now: float | None = None


class GhostStages:
    """The same bytes, no numbers."""

    def __init__(self, costs: ChainCosts, sizes: Sizes) -> None:
        self._costs = costs
        self._sizes = sizes

    def inputs(self, part: int) -> Payload:
        return Payload(0)

    def labels(self, part: int) -> Payload:
        return Payload(self._costs.label_bytes * self._sizes.count(part))

    def forward(
        self, numbers: _Ghost, buffers: Any, part: int, arrived: Payload, labels: Payload | None, ahead: float = 0.0
    ) -> _Passed:
        size = self._costs.crossing(numbers.last, self._sizes.count(part)) if labels is None else 0
        return _Passed(numbers, part, Payload(size) if labels is None else None)

    def backward(self, forwarded: _Passed, gradient: Payload | None) -> tuple[_Ghost, Payload]:
        first, samples = forwarded.numbers.first, self._sizes.count(forwarded.part)
        return forwarded.numbers, Payload(self._costs.crossing(first - 1, samples) if first else 0)

    def share(self, part: int) -> float:
        return self._sizes.count(part) / self._sizes.size

    def mix(self, total: Any, gradient: Any, share: float) -> Any:
        return gradient

    def initial(self) -> _Ghost:
        return _Ghost(0, self._costs.layers - 1)

    def step(self, numbers: _Ghost, gradient: Any, buffers: Any, lr: float) -> _Ghost:
        return numbers

    def average(self, versions: Sequence[_Ghost]) -> _Ghost:
        return versions[-1]

    def pack(self, numbers: _Ghost, first: int, last: int, moments: bool = True) -> Payload:
        return Payload(self._costs.state_bytes(first, last, moments))

    def join(self, first: int, last: int, pieces: Sequence[tuple[int, int, Payload]]) -> _Ghost:
        return _Ghost(first, last)

    def pack_step(self, gradient: _Ghost, buffers: Any) -> Payload:
        return Payload(self._costs.step_bytes(gradient.first, gradient.last))

    def redo(self, numbers: _Ghost, payload: Payload, lr: float) -> _Ghost:
        return numbers

    def crossing_refusal(self, first: int, samples: int, payload: Payload) -> str | None:
        return None

    def labels_refusal(self, samples: int, payload: Payload) -> str | None:
        return None

    def gradient_refusal(self, forwarded: _Passed, payload: Payload) -> str | None:
        return None

    def numbers_refusal(self, first: int, last: int, payload: Payload, step: bool = False) -> str | None:
        return None

    exams = 0

    def exam_size(self, number: int) -> int:
        return 0

    def exam_inputs(self, number: int) -> Payload:
        return Payload(0)

    def exam_labels(self, number: int) -> Payload:
        return Payload(0)

    def examine(self, numbers: _Ghost, arrived: Payload) -> Payload:
        return Payload(0)

    def exam_score(self, outputs: Payload, labels: Payload) -> tuple[float, int, int]:
        return 0.0, 0, 0

    def tensors(self, numbers: _Ghost) -> dict[str, Any]:
        return {}

    def restore(self, tensors: Mapping[str, Any]) -> _Ghost:
        return self.initial()


def split(payload: Payload, count: int) -> list[Payload]:
    """A payload in so many pieces of about equal size."""
    return [
        Payload(
            (place + 1) * payload.nbytes // count - place * payload.nbytes // count,
            tuple(array[place * len(array) // count : (place + 1) * len(array) // count] for array in payload.arrays),
        )
        for place in range(count)
    ]


def join_chunks(pieces: Sequence[Payload]) -> Payload:
    """The payload that was split."""
    arrays = zip(*(piece.arrays for piece in pieces), strict=True)
    return Payload(sum(piece.nbytes for piece in pieces), tuple(np.concatenate(parts) for parts in arrays))

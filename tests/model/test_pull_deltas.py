"""Compressed pulls: devices end up with the coordinator's reference bit for bit, and nothing is left out for good."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from potluck.errors import RunError
from potluck.loops.backends import DeltaSizes
from potluck.model.codecs import Codec
from potluck.model.layer_chain import trace_layers
from potluck.model.model_state import ModelState, WeightLayout
from potluck.model.pull_deltas import DeltaFormat, HeldModel, PulledSegment, PullRequest, ReferenceModel, join_segments
from potluck.payload import Payload
from potluck.settings import decode_settings

CODECS: list[Any] = [
    "fp16",
    {"kind": "int8", "block": 16},
    {"kind": "top-k", "ratio": 0.1},
    {"kind": "top-k", "ratio": 0.1, "values": "sign"},
    {"kind": "graded", "ratios": [0.05, 0.2]},
    {"kind": "adaptive", "ratio": 0.2, "delta": 0.3},
    {"kind": "power-sgd", "rank": 2},
]


def _layout() -> WeightLayout:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 10))
    return WeightLayout.of_chain(trace_layers(module, (20,)))


LAYOUT = _layout()
WHOLE = (0, LAYOUT.layer_count - 1)


def _format(codec: Any, cut: bool = False) -> DeltaFormat:
    return DeltaFormat.for_transfers(decode_settings(codec, Codec), LAYOUT, cut)


def _weights(seed: int) -> torch.Tensor:
    return torch.randn(LAYOUT.param_bounds[-1], generator=torch.Generator().manual_seed(seed))


def _pull(reference: ReferenceModel, held: HeldModel, cuts: list[tuple[int, int]]) -> int:
    """A device pulls the newest version in these segments; the bytes that travel."""
    state = ModelState(reference.params, torch.zeros(LAYOUT.buffer_bounds[-1]))
    decoded, nbytes = [], 0
    for first, last in cuts:
        request = PullRequest(first, last, reference.version, held.version)
        payload, base = reference.encode_segment(state, request)
        segment = PulledSegment(first, last, payload, reference.version, base)
        decoded.append((first, last, reference.format.decode_segment(held, segment)))
        nbytes += payload.nbytes
    held.version, held.params = reference.version, join_segments(decoded)
    return nbytes


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "by layer"])
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_devices_hold_the_reference_bit_for_bit(codec: Any, cut: bool) -> None:
    """Whether they pull every version, some of them, or the newest only."""
    reference = ReferenceModel(_format(codec, cut), _weights(0))
    cuts = [(layer, layer) for layer in range(LAYOUT.layer_count)] if cut else [WHOLE]
    devices = [HeldModel() for _ in range(3)]
    for version in range(1, 13):
        for every, held in zip((1, 5, 12), devices, strict=True):
            if version % every == 0:
                _pull(reference, held, cuts)
                assert held.params is not None
                assert torch.equal(held.params, reference.params)
        reference.advance(reference.params + 0.01 * _weights(version))


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_what_a_delta_leaves_out_follows_with_the_next(codec: Any) -> None:
    reference, target = ReferenceModel(_format(codec), _weights(0)), _weights(1)
    errors = []
    for _ in range(60):
        reference.advance(target)
        errors.append(float((target - reference.params).norm()))
    assert errors[-1] < 0.02 * errors[0] or errors[-1] < 1e-3


def test_a_device_that_missed_much_pulls_the_weights() -> None:
    reference, held = ReferenceModel(_format({"kind": "top-k", "ratio": 0.1}), _weights(0)), HeldModel()
    dense = LAYOUT.nbytes
    assert _pull(reference, held, [WHOLE]) == dense, "it holds none yet"
    sizes = []
    for missed in (1, 2, 3, 40):
        for version in range(missed):
            reference.advance(_weights(version))
        sizes.append(_pull(reference, held, [WHOLE]))
    buffers = 4 * LAYOUT.buffer_bounds[-1]
    assert sizes[1] - buffers == 2 * (sizes[0] - buffers)
    assert sizes[2] - buffers == 3 * (sizes[0] - buffers)
    assert sizes[0] < dense / 4
    assert sizes[3] == dense
    assert sum(part.nbytes for parts in reference.deltas.values() for part in parts) <= reference.params.nbytes
    assert _pull(reference, held, [WHOLE]) == buffers, "it holds that version already"


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("codec", [{"kind": "top-k", "ratio": 0.1, "values": "f16"}, {"kind": "power-sgd"}], ids=str)
def test_sizes_without_weights_are_those_with_weights(codec: Any, cut: bool) -> None:
    deltas = _format(codec, cut)
    reference, sizes = ReferenceModel(deltas, _weights(0)), DeltaSizes(deltas)
    cuts = [(0, 1), (2, WHOLE[1])] if cut else [WHOLE]
    held = HeldModel()
    for missed in (0, 1, 3, 30):
        for version in range(missed):
            reference.advance(_weights(version))
        expected = [
            sizes.encode_segment(PullRequest(*each, reference.version, held.version)).payload.nbytes for each in cuts
        ]
        assert sum(expected) == _pull(reference, held, cuts), f"after {missed} missed versions"


def test_a_checkpoint_restores_the_reference_and_its_deltas() -> None:
    deltas = _format({"kind": "adaptive", "ratio": 0.2, "delta": 0.3}, cut=True)
    reference, held = ReferenceModel(deltas, _weights(0)), HeldModel()
    _pull(reference, held, [WHOLE])
    for version in range(3):
        reference.advance(_weights(version))
    saved = {name: tensor.clone() for name, tensor in reference.tensors().items()}
    other = ReferenceModel(deltas, _weights(9))
    other.restore(saved)
    for each in (reference, other):
        each.advance(_weights(5))
    assert torch.equal(reference.params, other.params)
    assert other.version == reference.version == 5
    own = HeldModel(held.version, held.params)
    assert _pull(reference, held, [WHOLE]) == _pull(other, own, [WHOLE])
    assert torch.equal(held.params, own.params)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda encoded: encoded[:10], "ends too early"),
        (lambda encoded: encoded[:-1], "cannot be used"),
        (lambda encoded: np.concatenate([np.full(3, 200, np.uint8), encoded[3:]]), "cannot be used"),
    ],
)
def test_a_damaged_delta_is_an_error(change: Any, reason: str) -> None:
    deltas = _format({"kind": "top-k", "ratio": 0.1})
    reference, held = ReferenceModel(deltas, _weights(0)), HeldModel()
    _pull(reference, held, [WHOLE])
    reference.advance(_weights(1))
    state = ModelState(reference.params, torch.zeros(LAYOUT.buffer_bounds[-1]))
    payload, base = reference.encode_segment(state, PullRequest(*WHOLE, reference.version, held.version))
    encoded, buffers = payload.arrays
    damaged = PulledSegment(*WHOLE, Payload(0, (change(encoded), buffers)), reference.version, base)
    with pytest.raises(RunError, match=reason):
        deltas.decode_segment(held, damaged)
    with pytest.raises(RunError, match="but 7 is held"):
        deltas.decode_segment(HeldModel(7, held.params), PulledSegment(*WHOLE, payload, reference.version, base))

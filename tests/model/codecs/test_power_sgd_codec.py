from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from potluck.model.codecs import PowerSgdCodec
from potluck.model.codecs.codec_state import CodecState
from potluck.model.layer_chain import trace_layers
from potluck.model.model_state import WeightLayout
from potluck.payload import Payload

MODULE = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(16 * 36, 10))
LAYOUT = WeightLayout.of_chain(trace_layers(MODULE, (3, 8, 8)))
SIZE = LAYOUT.param_bounds[-1]
LINEAR = next(entry for entry in LAYOUT.params if entry.shape == (10, 576))


def _vector(seed: int = 0) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def test_a_matrix_of_low_rank_is_sent_exactly() -> None:
    codec, vector = PowerSgdCodec(rank=2, values="f32"), torch.zeros(SIZE)
    left, right = torch.randn(10, 2), torch.randn(2, 576)
    vector[LINEAR.start : LINEAR.stop] = (left @ right).reshape(-1)
    decoded = codec.decode(codec.encode(vector, codec.new_state(LAYOUT)), SIZE)
    torch.testing.assert_close(decoded, vector, rtol=1e-4, atol=1e-4)


def test_bytes_are_those_of_the_factors() -> None:
    codec = PowerSgdCodec(rank=1)
    payload = codec.encode(_vector(), codec.new_state(LAYOUT))
    others = SIZE - 16 * 27 - 10 * 576
    assert payload.nbytes == 2 * (16 + 27 + 10 + 576) + 2 * others + 2 * 12
    assert codec.payload_refusal(payload, SIZE) is None


@pytest.mark.parametrize(("values", "values_per_byte"), [("int8", 1), ("int4", 2)])
def test_quantised_columns_have_a_scale_each(values: Any, values_per_byte: int) -> None:
    codec = PowerSgdCodec(rank=2, values=values)
    payload = codec.encode(_vector(), codec.new_state(LAYOUT))
    others = SIZE - 16 * 27 - 10 * 576
    factors = 2 * (16 + 27 + 10 + 576)
    assert payload.nbytes == 2 * 12 + 4 * 8 + factors // values_per_byte + 4 + others // values_per_byte
    assert codec.segment_bytes(LAYOUT, 0, LAYOUT.layer_count - 1) == payload.nbytes
    assert codec.payload_refusal(payload, SIZE) is None


@pytest.mark.parametrize("values", ["int8", "int4"])
def test_an_update_that_is_not_finite_is_refused(values: Any) -> None:
    codec, vector = PowerSgdCodec(rank=1, values=values), _vector()
    vector[LINEAR.start] = float("nan")
    refusal = codec.payload_refusal(codec.encode(vector, codec.new_state(LAYOUT)), SIZE)
    assert refusal is not None
    assert "not all finite" in refusal


@pytest.mark.parametrize("values", ["f32", "f16", "int8", "int4"])
def test_what_is_not_sent_now_is_sent_later(values: Any) -> None:
    """The residual and all that was sent add up to all that came in."""
    codec = PowerSgdCodec(rank=1, values=values)
    state = codec.new_state(LAYOUT)
    assert state is not None
    came, sent = torch.zeros(SIZE), torch.zeros(SIZE)
    for seed in range(8):
        vector = _vector(seed)
        came += vector
        sent += codec.decode(codec.encode(vector, state), SIZE)
    assert state.residual is not None
    torch.testing.assert_close(sent + state.residual, came, rtol=1e-4, atol=1e-4)


def test_a_warm_start_approaches_the_best_approximation() -> None:
    """Repeated on one matrix, the power iteration finds its leading singular vectors."""
    codec = PowerSgdCodec(rank=2, values="f32")
    state = codec.new_state(LAYOUT)
    assert state is not None
    state.keeps_residual = False
    vector = torch.zeros(SIZE)
    torch.manual_seed(0)
    vector[LINEAR.start : LINEAR.stop] = (
        torch.randn(10, 2) @ torch.randn(2, 576) + 0.1 * torch.randn(10, 576)
    ).reshape(-1)
    errors = [float((codec.decode(codec.encode(vector, state), SIZE) - vector).norm()) for _ in range(5)]
    values = torch.linalg.svdvals(vector[LINEAR.start : LINEAR.stop].view(10, 576))
    assert errors[-1] <= errors[0]
    assert errors[-1] == pytest.approx(float(values[2:].norm()), rel=0.01)


def test_segments_are_encoded_alone_and_state_is_restored() -> None:
    codec = PowerSgdCodec(rank=1)
    state = codec.new_state(LAYOUT)
    assert state is not None
    cuts = [slice(*LAYOUT.param_bounds[:2]), slice(LAYOUT.param_bounds[1], SIZE)]
    for seed in range(2):
        for entries in cuts:
            codec.encode(_vector(seed)[entries], state, entries)
    other = CodecState.from_tensors(state.to_tensors())
    for entries in cuts:
        first, second = (codec.encode(_vector(7)[entries], each, entries).arrays for each in (state, other))
        assert [array.tobytes() for array in first] == [array.tobytes() for array in second]


def test_a_retracted_update_returns_to_the_residual() -> None:
    codec = PowerSgdCodec(rank=1, values="f32")
    state = codec.new_state(LAYOUT)
    assert state is not None
    codec.retract(codec.encode(_vector(), state), state, slice(0, SIZE))
    assert state.residual is not None
    torch.testing.assert_close(state.residual, _vector(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda table, factors, others: (table, factors), "arrays, not 3"),
        (lambda table, factors, others: (table.astype(np.int64), factors, others), "its matrices are int64"),
        (lambda table, factors, others: (table[:-1], factors, others), "not rows of three"),
        (lambda table, factors, others: (table + 10**6, factors, others), "not within the vector"),
        (lambda table, factors, others: (-table, factors, others), "not within the vector"),
        (lambda table, factors, others: (table, factors[:-1], others), "factors"),
        (lambda table, factors, others: (table, factors, others[:-1]), "values"),
        (lambda table, factors, others: (table, factors * np.float16("nan"), others), "are not all finite"),
        (lambda table, factors, others: (table, factors.astype(np.float32) + 1e30, others), "too large"),
    ],
)
def test_invalid_payloads_are_refused(change: Any, reason: str) -> None:
    codec = PowerSgdCodec(rank=1)
    arrays = codec.encode(_vector(), codec.new_state(LAYOUT)).arrays
    refusal = codec.payload_refusal(Payload(0, change(*arrays)), SIZE)
    assert refusal is not None
    assert reason in refusal

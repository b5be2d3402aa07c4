from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from potluck.model.codecs import Fp16Codec, Int8Codec
from tests.model.codecs.vectors import vectors


@settings(deadline=None)
@given(vector=vectors)
def test_fp16_rounds_to_nearest_and_saturates(vector: Tensor) -> None:
    decoded = Fp16Codec().decode(Fp16Codec().encode(vector), len(vector))
    assert decoded.dtype == torch.float32
    torch.testing.assert_close(decoded, vector.clamp(-65504, 65504), rtol=2**-11, atol=3e-8)


@pytest.mark.parametrize("codec", [Int8Codec(block=7), Int8Codec(block=7, rounding="stochastic")], ids=str)
@settings(deadline=None)
@given(vector=vectors)
def test_int8_is_at_most_one_step_off(codec: Int8Codec, vector: Tensor) -> None:
    payload = codec.encode(vector)
    decoded = codec.decode(payload, len(vector))
    assert codec.payload_refusal(payload, len(vector)) is None
    assert payload.nbytes == codec.encoded_bytes(len(vector), 4)
    for start in range(0, len(vector), 7):
        block = slice(start, start + 7)
        step = float(vector[block].abs().max()) / 127
        allowed = step * (0.501 if codec.rounding == "nearest" else 1.001) + 1e-42
        assert float((decoded[block] - vector[block]).abs().max()) <= allowed


def test_stochastic_rounding_is_unbiased_and_reproducible() -> None:
    codec = Int8Codec(block=4000, rounding="stochastic")
    vector = torch.full((4000,), 0.3)
    vector[0] = 127.0
    decoded = codec.decode(codec.encode(vector), 4000)
    assert set(decoded.tolist()) == {0.0, 1.0, 127.0}
    assert float(decoded[1:].mean()) == pytest.approx(0.3, abs=0.03)
    assert torch.equal(decoded, codec.decode(codec.encode(vector), 4000))
    other = vector.clone()
    other[1] = 0.25  # another device's vector
    assert not torch.equal(decoded, codec.decode(codec.encode(other), 4000))


@given(size=st.integers(0, 100), block=st.integers(1, 50))
def test_each_block_has_a_scale(size: int, block: int) -> None:
    _, scales = Int8Codec(block=block).encode(torch.ones(size)).arrays
    assert scales.shape == (-(-size // block),)

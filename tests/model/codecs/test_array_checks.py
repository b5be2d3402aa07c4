from __future__ import annotations

import math
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from potluck.model.codecs import Codec, DenseCodec, Fp16Codec, Int8Codec, TopKCodec
from potluck.model.codecs.array_checks import vector_norm
from potluck.payload import Payload
from tests.model.codecs.vectors import CODECS, vectors

DECODERS = [DenseCodec(), Fp16Codec(), Int8Codec(block=7), TopKCodec()]  # all sparse codecs use the same decoder
ids = [str(codec) for codec in CODECS]


def _arrays(codec: Codec, size: int = 40) -> list[Any]:
    vector = torch.randn(size, generator=torch.Generator().manual_seed(5))
    return [array.copy() for array in codec.encode(vector).arrays]


@pytest.mark.parametrize("codec", CODECS, ids=ids)
@settings(deadline=None, max_examples=25)
@given(vector=vectors)
def test_encoded_payloads_are_accepted(codec: Codec, vector: Tensor) -> None:
    payload = codec.encode(vector, codec.new_state())
    assert codec.payload_refusal(payload, len(vector)) is None
    decoded = codec.decode(payload, len(vector))
    assert decoded.shape == vector.shape
    assert bool(decoded.isfinite().all())


@pytest.mark.parametrize("codec", CODECS, ids=ids)
def test_read_only_buffers_are_decoded_without_warnings(codec: Codec) -> None:
    arrays = tuple(np.frombuffer(array.tobytes(), dtype=array.dtype) for array in _arrays(codec))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert codec.payload_refusal(Payload(0, arrays), 40) is None
        assert torch.equal(codec.decode(Payload(0, arrays), 40), codec.decode(Payload(0, tuple(_arrays(codec))), 40))


@pytest.mark.parametrize("codec", CODECS, ids=ids)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_values_are_refused(codec: Codec, bad: float) -> None:
    vector = torch.ones(40)
    vector[7] = bad
    assert "not all finite" in str(codec.payload_refusal(codec.encode(vector, codec.new_state()), 40))


@pytest.mark.parametrize("codec", CODECS, ids=ids)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda arrays: [],
        lambda arrays: [*arrays, arrays[0], arrays[0]],
        lambda arrays: [*arrays[:-1], b"bytes"],
        lambda arrays: [None] * len(arrays),
        lambda arrays: [array[:-1] for array in arrays],
        lambda arrays: [array.reshape(1, -1) for array in arrays],
        lambda arrays: [*arrays[:-1], arrays[-1][:0]],
        lambda arrays: [array.astype(array.dtype.newbyteorder(">")) for array in arrays[:1]] + arrays[2:],
        lambda arrays: [array.astype(object) for array in arrays],
        lambda arrays: [array.astype(np.complex64) for array in arrays],
        lambda arrays: [np.repeat(array, 2)[::2] for array in arrays],
    ],
)
def test_payloads_of_another_shape_are_refused(codec: Codec, spoil: Any) -> None:
    assert codec.payload_refusal(Payload(0, tuple(spoil(_arrays(codec)))), 40)


def test_arrays_must_be_one_dimensional() -> None:
    assert DenseCodec().payload_refusal(Payload(0, np.ones(3)), 3)  # type: ignore[arg-type]


_DTYPES = st.sampled_from([np.float32, np.float16, np.float64, np.uint8, np.int8, np.int32, np.bool_])


@st.composite
def _any_array(draw: st.DrawFn) -> Any:
    dtype: Any = draw(_DTYPES)
    raw = draw(st.binary(max_size=48))
    usable_bytes = len(raw) // np.dtype(dtype).itemsize * np.dtype(dtype).itemsize
    return np.frombuffer(raw[:usable_bytes], dtype=dtype)


@pytest.mark.parametrize("codec", DECODERS, ids=str)
@settings(deadline=None, max_examples=100)
@given(arrays=st.lists(_any_array(), max_size=3), size=st.integers(0, 24))
def test_any_payload_is_refused_or_decodes_to_finite_values(codec: Codec, arrays: list[Any], size: int) -> None:
    payload = Payload(0, tuple(arrays))
    if codec.payload_refusal(payload, size) is None:
        decoded = codec.decode(payload, size)
        assert decoded.shape == (size,)
        assert bool(decoded.isfinite().all())


@settings(deadline=None)
@given(data=st.data())
def test_any_indices_are_refused_or_decode(data: st.DataObject) -> None:
    codec = TopKCodec(ratio=0.1)
    values, indices = codec.encode(torch.arange(1.0, 101.0)).arrays
    spoilt = data.draw(st.binary(min_size=len(indices), max_size=len(indices)))
    payload = Payload(0, (values, np.frombuffer(spoilt, dtype=np.uint8)))
    if codec.payload_refusal(payload, 100) is None:
        assert int((codec.decode(payload, 100) != 0).sum()) == 10


def test_more_values_than_indices_are_refused() -> None:
    payload = Payload(0, (np.ones(9, dtype=np.float32), np.full(1, 255, dtype=np.uint8)))
    assert "9 values for 8 entries" in str(TopKCodec().payload_refusal(payload, 8))


@pytest.mark.parametrize(
    ("signs", "why"),
    [
        ([0, 0, 128, 63], "no end"),
        ([0, 0, 128, 63, 5, 0], "no end"),
        ([0, 0, 128, 127, 5, 1], "not finite"),
        ([0, 0, 192, 127, 5, 1], "not finite"),
        ([0, 0, 128, 63, 5, 1], "8 values, not 9"),
        ([0, 0, 128, 63, 5, 4], "10 values, not 9"),
    ],
)
def test_bad_signs_are_refused(signs: list[int], why: str) -> None:
    assert why in str(TopKCodec().payload_refusal(Payload(0, (np.array(signs, dtype=np.uint8),)), 9))


def test_overflowing_steps_are_refused() -> None:
    payload = Payload(0, (np.full(4, -128, dtype=np.int8), np.full(1, 3e36, dtype=np.float32)))
    assert "too large" in str(Int8Codec(block=4).payload_refusal(payload, 4))


@pytest.mark.parametrize("codec", DECODERS, ids=str)
def test_a_small_payload_for_a_large_vector_allocates_little(codec: Codec) -> None:
    tracemalloc.start()
    try:
        assert codec.payload_refusal(Payload(0, (np.ones(10, dtype=np.float32), np.zeros(10, dtype=np.uint8))), 10**12)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


# --- norms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS, ids=ids)
def test_the_norm_of_a_payload_is_that_of_its_values(codec: Codec) -> None:
    vector = torch.linspace(-2.0, 3.0, 500)
    payload = codec.encode(vector, codec.new_state(), slice(0, 500))
    assert codec.norm(payload, 500) == pytest.approx(float(codec.decode(payload, 500).double().norm()), rel=1e-4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-7, 1.0, 6e4, 1e-40, 1e-30, 1e30, 3e38, 1e200])
def test_a_norm_neither_overflows_nor_vanishes(scale: float, dtype: type) -> None:
    with np.errstate(over="ignore"):
        array: Any = np.full(1000, scale, dtype)
    if np.isfinite(array).all():
        assert vector_norm(array) == pytest.approx(float(array[0]) * 1000**0.5, rel=1e-3)


def test_the_norm_of_nothing_is_zero() -> None:
    assert vector_norm(np.zeros(0, np.float32)) == 0.0

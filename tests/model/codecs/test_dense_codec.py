from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.model.codecs import Codec, DenseCodec
from potluck.settings import decode_settings


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@settings(deadline=None)
@given(values=st.lists(st.floats(-6e4, 6e4), max_size=40))
def test_dense_round_trips_exactly(dtype: torch.dtype, values: list[float]) -> None:
    vector = torch.tensor(values, dtype=dtype)
    codec = DenseCodec()
    payload = codec.encode(vector)
    decoded = codec.decode(payload, len(values))
    assert decoded.dtype == dtype
    assert torch.equal(decoded, vector)
    assert payload.nbytes == codec.encoded_bytes(len(values), dtype.itemsize) == len(values) * dtype.itemsize


def test_dense_keeps_nan_and_infinity() -> None:
    vector = torch.tensor([float("nan"), float("inf"), -0.0])
    decoded = DenseCodec().decode(DenseCodec().encode(vector), 3)
    assert torch.equal(decoded.view(torch.int32), vector.view(torch.int32))


def test_a_vector_that_is_trained_can_be_sent() -> None:
    vector = torch.ones(3, requires_grad=True)
    assert not DenseCodec().decode(DenseCodec().encode(vector), 3).requires_grad


def test_a_slice_is_sent_as_it_is() -> None:
    vector = torch.arange(10.0)
    assert DenseCodec().decode(DenseCodec().encode(vector[3:7]), 4).tolist() == [3.0, 4.0, 5.0, 6.0]


def test_a_codec_is_named_in_a_job() -> None:
    assert decode_settings("dense", Codec) == DenseCodec()

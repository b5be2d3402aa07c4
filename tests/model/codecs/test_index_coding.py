from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.model.codecs.index_coding import indices_refusal, pack_indices, packed_index_bytes, unpack_indices


@st.composite
def _index_sets(draw: st.DrawFn) -> tuple[list[int], int]:
    size = draw(st.one_of(st.integers(1, 40), st.integers(1, 5000), st.just(2**33)))
    return sorted(draw(st.sets(st.integers(0, size - 1), max_size=40))), size


@settings(deadline=None)
@given(case=_index_sets())
def test_indices_round_trip(case: tuple[list[int], int]) -> None:
    indices, size = case
    packed = pack_indices(np.array(indices, dtype=np.int64), size)
    assert packed.dtype == np.uint8
    assert packed.nbytes == packed_index_bytes(len(indices), size)
    assert unpack_indices(packed, len(indices), size).tolist() == indices
    assert indices_refusal(packed, len(indices), size) is None


@settings(deadline=None, max_examples=300)
@given(data=st.data(), size=st.integers(1, 300))
def test_arbitrary_bytes_decode_to_valid_indices_or_are_refused(data: st.DataObject, size: int) -> None:
    count = data.draw(st.integers(0, size))
    length = packed_index_bytes(count, size)
    packed = np.frombuffer(data.draw(st.binary(min_size=length, max_size=length)), dtype=np.uint8)
    if indices_refusal(packed, count, size) is None:
        indices = unpack_indices(packed, count, size)
        assert len(indices) == count
        assert all(0 <= index < size for index in indices)
        assert len(set(indices.tolist())) == count


@pytest.mark.parametrize("wrong", [[3, 3], [5, 4], [9, 60]])
def test_repeated_unordered_and_out_of_range_indices_are_refused(wrong: list[int]) -> None:
    """Worked by hand: 2 of 50 indices have 4 low bits each and a bit vector of 2 + 3 flags."""
    low = wrong[0] % 16 | (wrong[1] % 16) << 4
    high = 1 << (wrong[0] // 16) | 1 << (wrong[1] // 16 + 1)
    packed = np.array([low, high], dtype=np.uint8)
    assert len(packed) == packed_index_bytes(2, 50)
    assert unpack_indices(packed, 2, 50).tolist() == wrong
    assert indices_refusal(packed, 2, 50) is not None


@pytest.mark.parametrize("ratio", [0.5, 0.2, 0.1, 0.03, 0.01, 0.001])
def test_coding_is_within_seven_tenths_of_a_bit_of_the_lower_bound(ratio: float) -> None:
    size = 1_000_000
    count = round(ratio * size)
    least = -math.log2(ratio) - (1 - ratio) / ratio * math.log2(1 - ratio)
    assert least <= 8 * packed_index_bytes(count, size) / count <= least + 0.7


@given(count=st.integers(1, 10**6), times=st.integers(1, 1000))
def test_coding_never_exceeds_plain_indices_or_a_bitmap(count: int, times: int) -> None:
    size = count * times
    assert packed_index_bytes(count, size) <= min(4 * count + 1, -(-size // 8))

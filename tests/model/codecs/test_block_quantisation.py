from __future__ import annotations

import numpy as np
import pytest
import torch

from potluck.model.codecs.block_quantisation import (
    Bits,
    blocks_refusal,
    pack_blocks,
    packed_block_bytes,
    unpack_blocks,
)

LENGTHS = [5, 1, 8, 3]
HIGHEST = {4: 7, 8: 127}


def _values() -> torch.Tensor:
    """Blocks of very different magnitudes, one of them zero."""
    scales = torch.repeat_interleave(torch.tensor([1.0, 1e-8, 1e4, 0.0]), torch.tensor(LENGTHS))
    return scales * torch.randn(sum(LENGTHS), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("bits", [4, 8])
def test_values_are_within_half_a_level_of_their_block(bits: Bits) -> None:
    values = _values()
    packed = pack_blocks(values, LENGTHS, bits)
    decoded = unpack_blocks(packed, LENGTHS, bits)
    for before, after in zip(torch.split(values, LENGTHS), torch.split(decoded, LENGTHS), strict=True):
        level = float(before.abs().max()) / HIGHEST[bits]
        assert float((before - after).abs().max()) <= 0.501 * level
    assert packed.nbytes == packed_block_bytes(LENGTHS, bits) == 4 * 4 + {4: 9, 8: 17}[bits]
    assert blocks_refusal(packed, "values", LENGTHS, bits) is None


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_block_that_is_not_finite_is_refused(bits: Bits, bad: float) -> None:
    values = _values()
    values[6] = bad
    refusal = blocks_refusal(pack_blocks(values, LENGTHS, bits), "values", LENGTHS, bits)
    assert refusal == "its values are not all finite"


@pytest.mark.parametrize("bits", [4, 8])
def test_other_sizes_and_types_are_refused(bits: Bits) -> None:
    packed = pack_blocks(_values(), LENGTHS, bits)
    assert "shape" in (blocks_refusal(packed[:-1], "values", LENGTHS, bits) or "")
    assert "int8" in (blocks_refusal(packed.view(np.int8), "values", LENGTHS, bits) or "")


@pytest.mark.parametrize("bits", [4, 8])
def test_no_blocks_are_no_bytes(bits: Bits) -> None:
    packed = pack_blocks(torch.zeros(0), [], bits)
    assert packed.nbytes == 0
    assert len(unpack_blocks(packed, [], bits)) == 0

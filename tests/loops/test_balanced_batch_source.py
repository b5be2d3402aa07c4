from __future__ import annotations

import numpy as np
import pytest
import torch

from potluck.data.samples import Samples
from potluck.loops.balanced_batch_source import ScrambledSamples, scramble_inputs


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 5, 1), (12,)], ids=str)
def test_scrambled_inputs_hold_the_same_values_but_no_original_sample(shape: tuple[int, ...]) -> None:
    inputs = torch.randn(6, *shape, generator=torch.Generator().manual_seed(1))
    scrambled = scramble_inputs(inputs, np.random.default_rng(0))
    assert scrambled.shape == inputs.shape
    assert set(scrambled.flatten().tolist()) <= set(inputs.flatten().tolist())
    assert not any(torch.equal(one, other) for one in scrambled for other in inputs)


def test_a_batch_holds_unchanged_own_samples_and_scrambled_ones_of_an_extra_class() -> None:
    x = torch.randn(10, 2, 4, 4, generator=torch.Generator().manual_seed(2))
    own = Samples(x, torch.arange(10) % 3)
    indices = np.array([4, -1, 2, -8])
    inputs, labels = ScrambledSamples(own, 3).batch(indices, np.random.default_rng(1))
    assert labels.tolist() == [1, 3, 2, 3]
    assert torch.equal(inputs[[0, 2]], x[[4, 2]])
    assert not torch.equal(inputs[1], x[0])
    repeated, _ = ScrambledSamples(own, 3).batch(indices, np.random.default_rng(1))
    assert torch.equal(repeated, inputs)

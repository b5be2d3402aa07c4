from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from potluck.report.run_curves import thinned_indices


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3000), st.integers(4, 500))
def test_thinning_keeps_few_points_including_the_extremes(values: list[float], most: int) -> None:
    indices = thinned_indices(values, most)
    assert len(indices) <= max(most + 2, 4)
    assert list(indices) == sorted(set(indices))
    assert {0, len(values) - 1} <= set(indices)
    thinned = np.array(values)[indices]
    assert (thinned.min(), thinned.max()) == (min(values), max(values))


def test_a_short_curve_is_not_thinned() -> None:
    assert list(thinned_indices([3.0, 1.0, 2.0], 10)) == [0, 1, 2]


def test_a_single_spike_among_a_million_survives() -> None:
    values = np.zeros(1_000_000)
    values[123_456] = 1.0
    assert 123_456 in thinned_indices(values, 1000)

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from potluck.data.holdout_split import split_holdout


@given(labels=st.lists(st.integers(0, 6), min_size=2, max_size=200), fraction=st.floats(0, 0.5), seed=st.integers(0, 9))
def test_a_holdout_is_disjoint_exhaustive_and_in_proportion(labels: list[int], fraction: float, seed: int) -> None:
    values = np.array(labels)
    count = round(fraction * len(values))
    train, test = split_holdout(values, count, seed)
    assert sorted([*train, *test]) == list(range(len(values)))
    assert len(test) <= count
    assert set(values) == set(values[train])
    for label in set(labels):
        exact = labels.count(label) * count / len(labels)
        assert abs(int(np.sum(values[test] == label)) - exact) <= 1

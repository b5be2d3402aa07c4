from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from potluck.model.codecs import largest_entries
from potluck.model.codecs.largest_entries import largest_indices
from potluck.model.codecs.top_k_codec import squared_norm


def _by_sorting(strengths: Tensor, count: int) -> list[int]:
    """The definition: sort by magnitude, then by index."""
    order = sorted(range(len(strengths)), key=lambda index: (-float(strengths[index]), index))
    return sorted(order[:count])


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(largest_entries, "_SAMPLE", 8)


@settings(deadline=None)
@given(values=st.lists(st.integers(0, 6), max_size=50), count=st.integers(0, 60))
def test_selection_equals_sorting(values: list[int], count: int) -> None:
    strengths = torch.tensor(values, dtype=torch.float32)
    assert largest_indices(strengths, count).tolist() == _by_sorting(strengths, count)


@pytest.mark.parametrize("levels", [3, 40, 10**6])
@pytest.mark.parametrize("count", [1, 5, 60, 500, 1999])
@pytest.mark.usefixtures("small_sample")
def test_candidate_search_gives_the_same_selection(levels: int, count: int) -> None:
    for seed in range(5):
        rng = torch.Generator().manual_seed(seed)
        strengths = torch.randint(levels, (2000,), generator=rng).float()
        assert largest_indices(strengths, count).tolist() == _by_sorting(strengths, count)


@pytest.mark.parametrize("order", [False, True])
def test_a_misleading_sample_does_not_change_the_selection(order: bool) -> None:
    strengths = torch.zeros(300_001)
    step = len(strengths) // largest_entries._SAMPLE | 1
    strengths[1::step] = 5.0  # just where the sample does not look
    strengths[::step] = 9.0 if order else 1.0  # just where it looks
    assert largest_indices(strengths, 1000).tolist() == torch.where(strengths == strengths.max())[0][:1000].tolist()


def test_selection_does_not_depend_on_the_number_of_threads() -> None:
    strengths = torch.randint(50, (600_000,), generator=torch.Generator().manual_seed(3)).float()
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append((largest_indices(strengths, 5000), squared_norm(strengths / 7)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(indices, results[0][0]) and power == results[0][1] for indices, power in results)
    equal = torch.where(strengths == 49)[0]
    assert results[0][0].tolist() == equal[:5000].tolist()


def test_energy_does_not_overflow() -> None:
    assert squared_norm(torch.full((3,), 1e30)) == pytest.approx(3e60, rel=1e-6)
    assert squared_norm(torch.zeros(0)) == 0

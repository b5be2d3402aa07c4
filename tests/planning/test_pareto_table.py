"""Pareto tables keep no dominated entry and never return one over budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.errors import RunError
from potluck.planning.pareto_table import ParetoEntry, ParetoTable, hypervolume, pareto_front

POINTS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20)), min_size=1, max_size=30)


def table(points: list[tuple[int, int]]) -> ParetoTable:
    return ParetoTable.from_trials("net", ["conv1"], 50, [(macs, float(gain), [0.5]) for macs, gain in points])


@given(POINTS)
def test_the_front_is_what_nothing_else_dominates(points: list[tuple[int, int]]) -> None:
    front = {points[index] for index in pareto_front(*zip(*points, strict=True))}
    for macs, gain in points:
        beaten = any(m <= macs and g >= gain and (m, g) != (macs, gain) for m, g in points)
        assert ((macs, gain) in front) is not beaten


@given(POINTS, st.floats(0, 60))
def test_the_best_entry_is_the_most_expensive_within_the_budget(points: list[tuple[int, int]], budget: float) -> None:
    pareto = table(points)
    best, costs = pareto.best_within(budget), [entry.macs for entry in pareto.entries]
    affordable = [index for index, cost in enumerate(costs) if cost <= budget]
    assert best == (affordable[-1] if affordable else 0)
    gains = [entry.gain for entry in pareto.entries]
    assert gains == sorted(set(gains))


@given(POINTS, POINTS)
def test_hypervolume_only_grows_with_more_points(some: list[tuple[int, int]], more: list[tuple[int, int]]) -> None:
    def area(points: list[tuple[int, int]]) -> float:
        return hypervolume([macs for macs, _ in points], [gain for _, gain in points], max_cost=51, min_gain=-1)

    covered = sum(any(m <= x and g >= y for m, g in some) for x in range(1, 51) for y in range(21))
    assert area(some) == covered  # the area, counted in unit squares
    assert area(some + more) >= area(some)


def test_a_table_survives_being_saved(tmp_path: Path) -> None:
    pareto = table([(10, 1), (20, 3), (15, 0)])
    pareto.save(tmp_path / "table.json")
    assert ParetoTable.load(tmp_path / "table.json") == pareto
    assert [entry.macs for entry in pareto.entries] == [10, 20]


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text('{"model": 3}')
    with pytest.raises(RunError, match="not a table"):
        ParetoTable.load(tmp_path / "table.json")
    entries = (ParetoEntry(macs=2, gain=0.0, rates=(0.1,)), ParetoEntry(macs=1, gain=0.0, rates=(0.2,)))
    with pytest.raises(ValueError, match="sorted"):
        ParetoTable(model="net", sets=("conv1",), baseline_macs=2, entries=entries)

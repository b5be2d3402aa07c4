"""The pure decisions of the pipeline loop: histories, sources, copies, neighbours, speeds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.loops.node import COORDINATOR
from potluck.loops.pipeline.history import History
from potluck.loops.pipeline.ledger import Ledger
from potluck.loops.pipeline.messages import Kept, Report
from potluck.loops.pipeline.planner import Plan
from potluck.loops.pipeline.recovery import without
from potluck.loops.pipeline.replication import Incremental, NoReplication, Periodic, pick
from potluck.loops.pipeline.sourcing import Held, Origin, newest_whole, origins
from potluck.loops.pipeline.speeds import Speeds


def test_a_rollback_makes_later_versions_those_of_another_story() -> None:
    history = History()
    history.begin(1, 0)
    history.begin(2, 10)
    assert [history.made(version) for version in (0, 1, 10, 11)] == [0, 1, 1, 2]
    history.begin(3, 8)
    assert [history.made(version) for version in (8, 9, 11)] == [1, 3, 3]
    assert History(history.terms).made(9) == 3


def test_the_newest_version_that_is_whole_is_found() -> None:
    held = [Held("a", 0, 1, 5, 1), Held("a", 0, 1, 4, 1), Held("b", 2, 3, 4, 1), Held(COORDINATOR, 0, 3, 0, 0)]
    assert newest_whole(held, 4) == 4
    assert newest_whole(held[:2] + held[3:], 4) == 0
    assert newest_whole(held[:2], 4) is None


def test_layers_come_from_the_nearest_copy() -> None:
    held = [Held("a", 0, 2, 4, 1), Held("b", 1, 3, 4, 1), Held(COORDINATOR, 0, 5, 4, 1)]
    assert origins(held, "b", range(6), 4) == [
        Origin("a", 0, 0, 4), Origin("b", 1, 3, 4), Origin(COORDINATOR, 4, 5, 4),
    ]  # fmt: skip


def test_without_a_version_each_layer_is_the_newest() -> None:
    held = [Held("a", 0, 1, 4, 1), Held("b", 1, 1, 7, 1)]
    assert origins(held, "a", range(2), None) == [Origin("a", 0, 0, 4), Origin("b", 1, 1, 7)]


@given(st.integers(1, 7), st.lists(st.integers(0, 60), min_size=1), st.lists(st.integers(0, 60), min_size=1))
def test_who_lags_behind_picks_a_mark_that_others_have(stride: int, mine: list[int], yours: list[int]) -> None:
    """Two who wait with the same marks pick the same one, whatever else one of them has done before."""
    waiting = range(max(min(mine), min(yours)), max(mine + yours) + 1)
    first, second = pick(waiting, stride), pick(list(waiting)[::-1], stride)
    assert first == second
    assert first is None or first % stride == 0


def test_copies_are_as_frequent_as_links_allow() -> None:
    assert Incremental(share=0.5).stride(0.4, 0.8, 1.0) == 1
    assert Incremental(share=0.5).stride(0.6, 1.2, 1.0) == 3
    assert Incremental().stride(0.6, 1.2, 0.0) == 100
    assert Periodic(chain=30).stride(9.0, 9.0, 1.0) == 30
    assert NoReplication().stride(0.1, 0.1, 1.0) == 0
    assert pick([3, 4, 5, 6, 7], 1) == 4
    assert pick([], 1) is None
    assert pick([0], 0) is None


@pytest.mark.parametrize(
    ("dead", "cuts", "order"),
    [
        ("b", (2, 6), "acd"),
        ("d", (2, 4), "abc"),
        ("bc", (2,), "ad"),
        ("cd", (2,), "ab"),
        ("bcd", (), "a"),
    ],
)
def test_the_next_stage_takes_over(dead: str, cuts: tuple[int, ...], order: str) -> None:
    alive = [name for name in "abcd" if name not in dead]
    assert without((2, 4, 6), tuple("abcd"), alive) == (cuts, tuple(order))


def plan_of(cuts: tuple[int, ...], order: str, layers: int) -> Plan:
    return Plan(cuts, tuple(order), layers, tuple(range(len(order), 0, -1)), 1.0, 1)


def test_a_batch_is_committed_when_every_stage_has_applied_it() -> None:
    ledger = Ledger(plan_of((2,), "ab", 4), 10, 0)
    assert ledger.report("b", Report(1, 12, 0.1, 0.5))
    assert ledger.committed == 10
    assert ledger.report("a", Report(1, 11))
    assert not ledger.report("a", Report(1, 11))
    assert ledger.committed == 11
    assert ledger.loss(11) == 0.5


def test_a_version_is_safe_when_each_stage_has_a_copy_of_it() -> None:
    ledger = Ledger(plan_of((2,), "ab", 4), 10, 0)
    assert not ledger.kept(Kept(1, 0, 1, 11))
    assert not ledger.kept(Kept(1, 0, 1, 12))
    assert not ledger.kept(Kept(1, 2, 3, 13))
    assert ledger.kept(Kept(1, 2, 3, 12))
    assert ledger.secure == 12
    assert not ledger.kept(Kept(1, 2, 3, 11))
    assert not ledger.kept(Kept(1, 9, 9, 99)), "nobody has such layers"


def test_a_change_of_speed_is_noticed_within_three_batches_and_noise_is_not() -> None:
    slowness: dict[str, float] = {}
    speeds = Speeds(slowness)
    assert not any(speeds.observe("a", 1.0, 1.0 + noise) for noise in (0.05, -0.05, 0.02, -0.04))
    assert [speeds.observe("a", 1.0, 3.0) for _ in range(3)].count(True) == 1
    assert slowness["a"] == pytest.approx(3.0)
    assert not speeds.observe("a", 0.0, 3.0)
    speeds.forget("a")
    assert "a" not in slowness

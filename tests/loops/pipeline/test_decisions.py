"""The pure decisions of the pipeline loop: histories, sources, copies, neighbours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.loops.node import COORDINATOR
from potluck.loops.pipeline.layer_sources import HeldLayers, LayerOrigin, newest_complete_version, plan_layer_sources
from potluck.loops.pipeline.messages import Kept, Report
from potluck.loops.pipeline.pipeline_planner import PipelinePlan
from potluck.loops.pipeline.recovery import layout_without
from potluck.loops.pipeline.replication import (
    IncrementalReplication,
    NoReplication,
    PeriodicReplication,
    next_version_to_copy,
)
from potluck.loops.pipeline.term_state import TermHistory, TermProgress


def test_a_rollback_makes_later_versions_those_of_a_new_term() -> None:
    history = TermHistory()
    history.begin_term(1, 0)
    history.begin_term(2, 10)
    assert [history.term_that_made(version) for version in (0, 1, 10, 11)] == [0, 1, 1, 2]
    history.begin_term(3, 8)
    assert [history.term_that_made(version) for version in (8, 9, 11)] == [1, 3, 3]
    assert TermHistory(history.terms).term_that_made(9) == 3


def test_the_newest_complete_version_is_found() -> None:
    held_layers = [
        HeldLayers("a", 0, 1, 5, 1),
        HeldLayers("a", 0, 1, 4, 1),
        HeldLayers("b", 2, 3, 4, 1),
        HeldLayers(COORDINATOR, 0, 3, 0, 0),
    ]
    assert newest_complete_version(held_layers, 4) == 4
    assert newest_complete_version(held_layers[:2] + held_layers[3:], 4) == 0
    assert newest_complete_version(held_layers[:2], 4) is None


def test_layers_come_from_the_nearest_copy() -> None:
    held_layers = [HeldLayers("a", 0, 2, 4, 1), HeldLayers("b", 1, 3, 4, 1), HeldLayers(COORDINATOR, 0, 5, 4, 1)]
    assert plan_layer_sources(held_layers, "b", range(6), 4) == [
        LayerOrigin("a", 0, 0, 4), LayerOrigin("b", 1, 3, 4), LayerOrigin(COORDINATOR, 4, 5, 4),
    ]  # fmt: skip


def test_without_a_version_each_layer_is_the_newest() -> None:
    held_layers = [HeldLayers("a", 0, 1, 4, 1), HeldLayers("b", 1, 1, 7, 1)]
    assert plan_layer_sources(held_layers, "a", range(2), None) == [
        LayerOrigin("a", 0, 0, 4),
        LayerOrigin("b", 1, 1, 7),
    ]


@given(st.integers(1, 7), st.lists(st.integers(0, 60), min_size=1), st.lists(st.integers(0, 60), min_size=1))
def test_a_stage_that_lags_behind_copies_a_version_that_others_copy(
    stride: int, own: list[int], others: list[int]
) -> None:
    """Two stages that wait with the same versions pick the same one, whatever they have copied before."""
    waiting = range(max(min(own), min(others)), max(own + others) + 1)
    first, second = next_version_to_copy(waiting, stride), next_version_to_copy(list(waiting)[::-1], stride)
    assert first == second
    assert first is None or first % stride == 0


def test_copies_are_as_frequent_as_links_allow() -> None:
    assert IncrementalReplication(share=0.5).copy_stride(0.4, 0.8, 1.0) == 1
    assert IncrementalReplication(share=0.5).copy_stride(0.6, 1.2, 1.0) == 3
    assert IncrementalReplication().copy_stride(0.6, 1.2, 0.0) == 100
    assert PeriodicReplication(chain=30).copy_stride(9.0, 9.0, 1.0) == 30
    assert NoReplication().copy_stride(0.1, 0.1, 1.0) == 0
    assert next_version_to_copy([3, 4, 5, 6, 7], 1) == 4
    assert next_version_to_copy([], 1) is None
    assert next_version_to_copy([0], 0) is None


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
    assert layout_without((2, 4, 6), tuple("abcd"), alive) == (cuts, tuple(order))


def plan_of(cuts: tuple[int, ...], order: str, layers: int) -> PipelinePlan:
    return PipelinePlan(cuts, tuple(order), layers, tuple(range(len(order), 0, -1)), 1.0, 1)


def test_a_batch_is_committed_when_every_stage_has_applied_it() -> None:
    progress = TermProgress(plan_of((2,), "ab", 4), 10, 0)
    assert progress.record_report("b", Report(1, 12, 0.1, 0.5))
    assert progress.committed_version == 10
    assert progress.record_report("a", Report(1, 11))
    assert not progress.record_report("a", Report(1, 11))
    assert progress.committed_version == 11
    assert progress.pop_loss(11) == 0.5


def test_a_version_is_secure_when_each_stage_has_a_copy_of_it() -> None:
    progress = TermProgress(plan_of((2,), "ab", 4), 10, 0)
    assert not progress.record_copy(Kept(1, 0, 1, 11))
    assert not progress.record_copy(Kept(1, 0, 1, 12))
    assert not progress.record_copy(Kept(1, 2, 3, 13))
    assert progress.record_copy(Kept(1, 2, 3, 12))
    assert progress.secure_version == 12
    assert not progress.record_copy(Kept(1, 2, 3, 11))
    assert not progress.record_copy(Kept(1, 9, 9, 99)), "no stage has such layers"

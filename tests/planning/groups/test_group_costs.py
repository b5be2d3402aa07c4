"""Class groups, even assignment, and the cost of a cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.errors import ModelError, SettingError
from potluck.planning.groups import (
    ChannelGraph,
    ChannelStep,
    DeviceBudget,
    assign_evenly,
    check_groups,
    choose_groups,
    even_groups,
    even_sizes,
    full_model_cost,
    group_choices,
    group_cost,
    max_trunk_depth,
    similar_groups,
)

# Three convolutions and a head on 4 positions: one input channel, 10 classes.
LAYERS = ChannelGraph(
    (
        ChannelStep("one", "mix", (-1,), 20, macs=900, weights=9, extras=1),
        ChannelStep("two", "mix", (0,), 40, macs=225, weights=9, extras=1),
        ChannelStep("norm", "pass", (1,), 40, extras=2),
        ChannelStep("three", "mix", (2,), 60, macs=25, weights=1, extras=1),
        ChannelStep("flat", "flatten", (3,), 240, positions=4),
        ChannelStep("head", "mix", (4,), 10, macs=1, weights=1, extras=1),
    ),
    1,
)
SEPARABLE = ChannelGraph(
    (
        LAYERS.steps[0],
        ChannelStep("deep", "grouped", (0,), 20, runs=20, macs=81, weights=9),
        *(replace(step, sources=(step.sources[0] + 1,)) for step in LAYERS.steps[1:]),
    ),
    1,
)
# A residual block of 8 channels behind a stem: the sum unites the stem's channels with those of "second".
RESIDUAL = ChannelGraph(
    (
        ChannelStep("stem", "mix", (-1,), 8, macs=64, weights=9),
        ChannelStep("first", "mix", (0,), 12, macs=64, weights=9),
        ChannelStep("second", "mix", (1,), 8, macs=64, weights=9),
        ChannelStep("sum", "join", (0, 2), 8),
        ChannelStep("third", "mix", (3,), 6, macs=64, weights=9),
        ChannelStep("cat", "concat", (3, 4), 14),
        ChannelStep("head", "mix", (5,), 4, macs=1, weights=1),
    ),
    3,
)


def worth(gains: np.ndarray, owners: np.ndarray) -> float:
    return float(gains[np.arange(len(gains)), owners].sum())


@given(st.integers(0, 200), st.integers(1, 20))
def test_even_sizes_add_up_and_differ_by_one_at_most(total: int, groups: int) -> None:
    sizes = even_sizes(total, groups)
    assert sum(sizes) == total
    assert len(sizes) == groups
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_assignment_fills_every_group(seed: int, rows: int, groups: int) -> None:
    gains = np.random.default_rng(seed).normal(size=(rows, groups))
    owners = assign_evenly(gains, even_sizes(rows, groups))
    assert tuple(np.bincount(owners, minlength=groups)) == even_sizes(rows, groups)


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_assignment_to_two_groups_is_optimal(seed: int) -> None:
    gains = np.random.default_rng(seed).normal(size=(6, 2))
    best = max(worth(gains, np.array(owners)) for owners in set(permutations([0, 0, 0, 1, 1, 1])))
    assert worth(gains, assign_evenly(gains, (3, 3))) == pytest.approx(best)


def test_assignment_terminates_when_all_gains_are_equal() -> None:
    assert sorted(assign_evenly(np.full((9, 3), 0.1), (3, 3, 3))) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_similar_classes_are_grouped_in_any_order() -> None:
    rng = np.random.default_rng(0)
    kind = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])
    features = np.eye(3)[kind] * 10 + rng.normal(size=(12, 3))
    assert similar_groups(features, 3) == ((0, 3, 6, 9), (1, 4, 7, 10), (2, 5, 8, 11))


def test_similarity_groups_are_even_and_reproducible() -> None:
    features = np.random.default_rng(1).normal(size=(11, 2, 4))
    groups = similar_groups(features, 3, seed=5)
    assert sorted(map(len, groups)) == [3, 4, 4]
    assert check_groups(groups, 11) == groups
    assert similar_groups(features, 3, seed=5) == groups


def test_similarity_grouping_accepts_identical_classes() -> None:
    assert sorted(map(len, similar_groups(np.zeros((6, 3)), 3))) == [2, 2, 2]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[0, 1], []], r"groups\[1\]: is empty"),
        ([[0, 1], [1, 2]], "class 1 is in more than one group"),
        ([[0], [2]], "class 1 is in no group"),
        ([[0, 1, 2, 3]], "class 3 is not among the 3 classes"),
    ],
)
def test_groups_that_are_not_a_partition_are_refused(groups: list[list[int]], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        check_groups(groups, 3)


def test_more_groups_than_classes_are_refused() -> None:
    with pytest.raises(SettingError, match="3 classes cannot form 4 groups"):
        even_groups(3, 4)


def test_cost_follows_the_formula_where_widths_divide_evenly() -> None:
    cost = group_cost(LAYERS, [1] * 10, depth=1)
    assert cost.trunk_macs == 900 * 20
    head = 4 * 6 * 2  # one class and "other"
    assert cost.group_macs == 225 * 20 * 40 // 10 + 25 * 40 * 60 // 100 + head
    assert cost.macs == cost.trunk_macs + cost.group_macs


def test_group_costs_are_additive() -> None:
    sizes = even_sizes(10, 3)
    per_group = [group_cost(LAYERS, sizes, 1, [group]) for group in range(3)]
    together = group_cost(LAYERS, sizes, 1, range(3))
    assert together.group_macs == sum(cost.group_macs for cost in per_group)
    assert together.group_weights == sum(cost.group_weights for cost in per_group)
    assert together.trunk_weights == per_group[0].trunk_weights == 9 * 20 + 20


def test_one_group_on_a_full_trunk_costs_one_logit_more_than_the_network() -> None:
    cost = group_cost(LAYERS, [10], max_trunk_depth(LAYERS))
    assert cost.macs == full_model_cost(LAYERS).macs + 4 * 60


def test_depthwise_layers_stay_with_the_trunk_and_shrink_once() -> None:
    shared, divided = group_cost(SEPARABLE, [5, 5], 1), group_cost(SEPARABLE, [5, 5], 0)
    assert shared.trunk_macs == 900 * 20 + 81 * 20
    assert divided.trunk_macs == 0
    assert divided.group_macs == 900 * 10 + 81 * 10 + 225 * 10 * 20 + 25 * 20 * 30 + 4 * 30 * 6
    assert max_trunk_depth(SEPARABLE) == max_trunk_depth(LAYERS) == 3


def test_a_frozen_trunk_runs_forward_only() -> None:
    cost = group_cost(LAYERS, [5, 5], 1)
    assert cost.training_macs(frozen=True) == cost.trunk_macs + 3 * cost.group_macs - cost.group_entry
    assert cost.training_macs(frozen=False) == 3 * cost.macs - cost.trunk_entry
    assert full_model_cost(LAYERS).training_macs(frozen=False) == 3 * full_model_cost(LAYERS).macs - 900 * 20


def test_more_groups_and_less_trunk_cost_less() -> None:
    choices = {(choice.depth, choice.groups): choice for choice in group_choices(LAYERS, 10)}
    assert set(choices) == {(depth, count) for depth in range(4) for count in range(1, 11)}
    for depth in range(4):
        costs = [choices[depth, count].cost.macs for count in range(1, 11)]
        assert costs == sorted(costs, reverse=True)
    for count in range(2, 11):
        assert choices[0, count].cost.macs < choices[1, count].cost.macs < choices[2, count].cost.macs


@given(st.floats(1e3, 1e6), st.booleans())
@settings(max_examples=50, deadline=None)
def test_the_choice_fits_and_nothing_that_fits_keeps_more(macs: float, frozen: bool) -> None:
    budget = DeviceBudget(macs=macs, frozen=frozen)
    fitting = [choice for choice in group_choices(LAYERS, 10) if choice.cost.training_macs(frozen=frozen) <= macs]
    if not fitting:
        with pytest.raises(ModelError, match="no cut fits the budget"):
            choose_groups(LAYERS, 10, budget)
        return
    chosen = choose_groups(LAYERS, 10, budget)
    assert budget.fits_budget(chosen.cost)
    assert chosen.kept_fraction == max(choice.kept_fraction for choice in fitting)


def test_a_large_budget_allows_the_whole_network_and_memory_counts_too() -> None:
    assert choose_groups(LAYERS, 10, DeviceBudget()).kept_fraction == 1.0
    chosen = choose_groups(LAYERS, 10, DeviceBudget(weight_bytes=4 * 2000))
    assert chosen.cost.weights <= 2000


def test_a_device_that_holds_more_groups_affords_smaller_ones() -> None:
    budget = DeviceBudget(macs=0.2 * full_model_cost(LAYERS).training_macs(frozen=False))
    one, two = choose_groups(LAYERS, 10, budget), choose_groups(LAYERS, 10, budget, held=lambda count: min(2, count))
    assert one.kept_fraction > two.kept_fraction
    assert two.cost == group_cost(LAYERS, even_sizes(10, two.groups), two.depth, range(2))


def test_configured_values_are_not_chosen_again() -> None:
    budget = DeviceBudget(macs=0.5 * full_model_cost(LAYERS).training_macs(frozen=False))
    assert choose_groups(LAYERS, 10, budget, depths=(1,)).depth == 1
    assert choose_groups(LAYERS, 10, budget, counts=(7,)).groups == 7


def test_too_many_groups_for_the_channels_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match="'one' has 20 channels, too few for 30 groups"):
        group_cost(LAYERS, [1] * 30, 0)
    assert max(choice.groups for choice in group_choices(LAYERS, 30) if choice.depth == 0) == 20


def test_a_full_trunk_leaves_nothing_to_divide() -> None:
    with pytest.raises(ModelError, match="depth 4 leaves no layer"):
        group_cost(LAYERS, [5, 5], 4)


# --- graphs -----------------------------------------------------------------------------------------------------------


def test_channels_that_are_added_belong_to_one_set_and_a_concatenation_keeps_them_apart() -> None:
    sets = RESIDUAL.channel_sets
    assert np.array_equal(sets[0], sets[2])
    assert np.array_equal(sets[5], np.concatenate([sets[0], sets[4]]))
    assert not set(sets[1]) & set(sets[0])


def test_a_group_takes_its_own_channels_of_the_trunk_where_they_are_added() -> None:
    owned = {step.index: step for step in RESIDUAL.own_channels(1, np.array([0, 0, 1, 1]))}
    assert owned[1].inputs[0].tolist() == [-1] * 8  # convolutions read all of the trunk's features
    assert owned[2].outputs.tolist() == [0] * 4 + [1] * 4
    assert [owners.tolist() for owners in owned[3].inputs] == [[0] * 4 + [1] * 4] * 2
    assert owned[5].outputs.tolist() == [0] * 4 + [1] * 4 + [0] * 3 + [1] * 3
    cost = group_cost(RESIDUAL, [2, 2], 1)
    assert cost.group_macs == 64 * (8 * 6 + 6 * 4 + 4 * 3) + 7 * 3


def test_depths_within_a_block_are_refused_and_not_chosen() -> None:
    assert RESIDUAL.trunk_ends == {0: 0, 1: 1, 3: 4, 4: 6}
    with pytest.raises(ModelError, match=r"depth 2 would cut a block .* before 'second'; use 0, 1, 3, 4"):
        group_cost(RESIDUAL, [2, 2], 2)
    assert {choice.depth for choice in group_choices(RESIDUAL, 4)} == {0, 1, 3, 4}


def test_runs_of_a_grouped_convolution_stay_together() -> None:
    graph = ChannelGraph(
        (
            ChannelStep("one", "mix", (-1,), 12, macs=9, weights=9),
            ChannelStep("runs", "grouped", (0,), 24, runs=3, reads=4, macs=9, weights=9),
            ChannelStep("head", "mix", (1,), 4, macs=1, weights=1),
        ),
        2,
    )
    owned = graph.own_channels(0, np.array([0, 0, 1, 1]))
    assert owned[0].outputs.tolist() == [0] * 8 + [1] * 4
    assert owned[1].outputs.tolist() == [0] * 16 + [1] * 8
    assert owned[1].inputs[0].tolist() == owned[0].outputs.tolist()
    with pytest.raises(ModelError, match="'one' has 12 channels in 3 inseparable runs, too few for 4 groups"):
        group_cost(graph, [1] * 4, 0)
    first_divides = graph.own_channels(1, np.array([0, 0, 1, 1]))
    assert first_divides[0].inputs[0].tolist() == [0] * 8 + [1] * 4  # a group selects what its runs read

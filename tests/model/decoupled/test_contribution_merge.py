"""Merging contributions by group, weight and name; missing groups are reported and left unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from potluck.model.decoupled import Contribution, GroupedNetwork, decouple, merge_contributions
from potluck.planning.groups import even_groups
from tests.model.decoupled.networks import SHAPE, contribution, samples, small, small_grouped, trained


def constant(grouped: GroupedNetwork, value: float, samples: dict[int, int], device: str = "d") -> Contribution:
    """The contribution of a device whose weights are all equal."""
    submodel = grouped.build_submodel(samples.keys())
    state = {name: torch.full_like(tensor, value) for name, tensor in submodel.state_dict().items()}
    return Contribution(device, state, samples)


@pytest.mark.parametrize("variant", ["structural", "attributed"])
def test_merging_untrained_submodels_changes_nothing(variant: str) -> None:
    grouped = decouple(small(), SHAPE, even_groups(6, 3), 1, variant, samples=[samples()])  # type: ignore[arg-type]
    contributions = [
        contribution(str(number), grouped.build_submodel(chosen)) for number, chosen in enumerate([{0}, {1, 2}, {2, 0}])
    ]
    state, _ = merge_contributions(grouped, contributions)
    for name, value in grouped.state_dict().items():
        if not name.endswith("readout.trained"):
            torch.testing.assert_close(state[name], value, rtol=1e-6, atol=0)


def test_each_group_is_averaged_over_its_devices_weighted_by_samples() -> None:
    grouped = small_grouped()
    state, report = merge_contributions(
        grouped, [constant(grouped, 1.0, {0: 30}, "a"), constant(grouped, 4.0, {0: 10, 1: 20}, "b")]
    )
    assert set(state["groups.0.stages.2.weight"].flatten().tolist()) == {1.75}
    assert set(state["groups.1.stages.2.weight"].flatten().tolist()) == {4.0}
    assert set(state["trunk.0.weight"].flatten().tolist()) == {2.5}  # 30 samples against 30
    assert report.trained == {0: {"a": 30, "b": 10}, 1: {"b": 20}}
    assert report.trunk_from == {"a": 30, "b": 30}


def test_an_untrained_group_is_reported_and_left_unchanged() -> None:
    grouped = small_grouped()
    state, report = merge_contributions(grouped, [constant(grouped, 1.0, {0: 5, 1: 5})])
    assert report.untrained == report.excluded == (2,)
    assert "excluded, never trained: 2" in str(report)
    for name in [name for name in grouped.trained_names({2}) if name.startswith("groups")]:
        assert torch.equal(state[name], grouped.state_dict()[name])
    grouped.load_state_dict(state)
    _, later = merge_contributions(grouped, [constant(grouped, 1.0, {2: 5})])
    assert later.untrained == (0, 1)  # this time
    assert later.excluded == ()  # but they were trained before


def test_a_frozen_trunk_is_unchanged_and_need_not_be_sent() -> None:
    grouped = small_grouped(frozen=True)
    submodel = grouped.build_submodel({0})
    trained(submodel, steps=2)
    sent = {name: value for name, value in submodel.state_dict().items() if not name.startswith("trunk.")}
    state, report = merge_contributions(grouped, [Contribution("a", sent, {0: 3})])
    assert not report.refused
    assert not report.trunk_from
    assert torch.equal(state["trunk.0.weight"], grouped.state_dict()["trunk.0.weight"])
    assert torch.equal(state["groups.0.stages.2.weight"], sent["groups.0.stages.2.weight"])


def test_a_single_contribution_is_merged_exactly() -> None:
    grouped = decouple(small(), SHAPE, even_groups(6, 3), 1)
    submodel = grouped.build_submodel({0, 1, 2})
    trained(submodel)
    state, _ = merge_contributions(grouped, [contribution("a", submodel)])
    assert all(torch.equal(state[name], value) for name, value in submodel.state_dict().items())


def test_merging_does_not_change_the_grouped_network() -> None:
    grouped = small_grouped()
    before = {name: value.clone() for name, value in grouped.state_dict().items()}
    merge_contributions(grouped, [constant(grouped, 7.0, {0: 1, 1: 1, 2: 1})])
    assert all(torch.equal(value, before[name]) for name, value in grouped.state_dict().items())


def spoil(change: Callable[[dict[str, Tensor]], object]) -> Contribution:
    grouped = small_grouped()
    bad = constant(grouped, 1.0, {0: 5}, "bad")
    change(dict_state := dict(bad.state))
    return Contribution("bad", dict_state, bad.samples)


NAME = "groups.0.stages.5.weight"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (spoil(lambda state: state.pop(NAME)), "is missing"),
        (spoil(lambda state: state.update({NAME: torch.zeros(3)})), "has shape (3,)"),
        (spoil(lambda state: state[NAME].fill_(torch.nan)), "contains NaN or infinity"),
        (Contribution("bad", {}, {9: 5}), "there is no group 9"),
        (Contribution("bad", {}, {0: 0}), "no sample"),
        (Contribution("bad", {}, {}), "no sample"),
    ],
)
def test_a_bad_contribution_is_refused_and_the_others_are_merged(bad: Contribution, message: str) -> None:
    grouped = small_grouped()
    state, report = merge_contributions(grouped, [bad, constant(grouped, 2.0, {0: 5}, "good")])
    assert message in report.refused["bad"]
    assert report.trained == {0: {"good": 5}}
    assert set(state[NAME].flatten().tolist()) == {2.0}


def test_decoupled_devices_together_learn_all_classes() -> None:
    grouped = decouple(small(), SHAPE, even_groups(6, 3), 1, frozen=True)
    contributions = [grouped.build_submodel({number}) for number in range(3)]
    for submodel in contributions:
        trained(submodel, steps=60)
    state, report = merge_contributions(
        grouped, [contribution(str(submodel.group_indices), submodel) for submodel in contributions]
    )
    grouped.load_state_dict(state)
    inputs, labels = samples(120, seed=5)
    accuracy = (grouped.assemble()(inputs).argmax(dim=1) == labels).float().mean()
    assert not report.excluded
    assert float(accuracy) > 0.8

"""Class groups that learn from the assembled network: soft targets, what they cost, and that they act."""

from __future__ import annotations

import pytest
import torch

import potluck
from potluck.loops.backends import TurnIdentity
from potluck.model.decoupled import GroupedNetwork, GroupLoss, decouple
from potluck.model.decoupled.group_extractor import GroupExtractor
from potluck.model.decoupled.group_loss import DistillationLoss
from potluck.model.decoupled.grouped_network import DistilledSubmodel
from potluck.planning.groups import full_model_cost, group_costs
from potluck.run.rounds_setup import RoundsSetup
from tests.model.decoupled.networks import SHAPE, samples, small, wake
from tests.simulation.test_decoupled import THIRDS, make_job, max_difference, run, task

GROUPS = ((4, 0), (2, 5), (1, 3))
DISTILLED = {**THIRDS, "distill": 0.5}
SPLIT = {"kind": "class-groups"}


def test_soft_targets_are_the_probabilities_of_the_network_as_it_was_pulled() -> None:
    grouped = decouple(small(), SHAPE, GROUPS, 1)
    inputs, _ = samples()
    submodel = DistilledSubmodel(grouped, (1,))
    submodel.begin_turn()
    assert not submodel(inputs)[:, 3:].any()  # no group is trained
    wake(grouped)
    submodel = DistilledSubmodel(grouped, (1,))
    submodel.begin_turn()
    expected = grouped.assemble()(inputs).softmax(dim=1)
    with torch.no_grad():
        for parameter in submodel.parameters():
            parameter.mul_(1.5)  # training goes on
    outputs = submodel(inputs)
    torch.testing.assert_close(outputs[:, 3:], expected)
    assert outputs.shape[1] == 3 + 6  # two classes and "other", then all six


def test_a_group_that_agrees_with_the_assembled_network_has_the_least_loss() -> None:
    """The loss of a group is smallest where its probabilities are the network's."""
    targets = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.05, 0.05]])
    hard = GroupLoss([(0, 1)], 6)
    loss = DistillationLoss(hard, [(0, 1)], 6, 0.999)
    shift = torch.log(torch.tensor(2.0))  # others are twice as frequent as the group's classes
    agreeing = torch.tensor([[0.5, 0.2, 0.3]]).log() - torch.tensor([0.0, 0.0, 1.0]) * shift
    label = torch.tensor([0])
    least = loss(torch.cat([agreeing, targets], dim=1), label)
    for column in range(3):
        other = agreeing.clone()
        other[0, column] += 0.5
        assert loss(torch.cat([other, targets], dim=1), label) > least
    without = DistillationLoss(hard, [(0, 1)], 6, 0.5)(torch.cat([agreeing, 0 * targets], dim=1), label)
    assert float(without) == pytest.approx(float(hard(agreeing, label)))


def test_distillation_acts_from_the_second_round_on_and_changes_own_groups_only() -> None:
    for rounds in (1, 3):
        plain, distilled = (
            run(make_job(submodel, 3, split=SPLIT, stop={"rounds": rounds}))[0] for submodel in (THIRDS, DISTILLED)
        )
        differs = max_difference(plain, distilled, "groups.1.stages.2.weight") > 1e-4
        assert differs == (rounds > 1)
    only_first = {**DISTILLED, "held": {"pi-0": [0], "pi-1": [0], "pi-2": [0]}}
    module, summary = run(make_job(only_first, 3, split=SPLIT))
    assert summary["untrained_groups"] == [1, 2]
    before = RoundsSetup.from_job(make_job(only_first, 3, split=SPLIT), task(), None).module
    assert isinstance(before, GroupedNetwork)
    assert max_difference(module, before, "groups.1.stages.2.weight") == 0


@pytest.mark.parametrize("more", [{}, {"trunk": "frozen", "cache": "4 MB"}])
def test_the_assembled_network_is_paid_for(more: dict[str, str]) -> None:
    setup = RoundsSetup.from_job(make_job({**DISTILLED, **more}, 3), task(), None)
    assert isinstance(setup.extractor, GroupExtractor)
    graph = setup.extractor.grouped.graph
    spec = setup.extractor.select_submodel(TurnIdentity("pi-1", 0, 0))
    costs = group_costs(graph, (2, 2, 2), 1)
    shared = 0 if more else costs.trunk.trunk_macs
    assert sum(spec.macs) == costs.macs[1] + shared
    assert sum(spec.forward_macs) == costs.macs.sum() + shared
    assert spec.layout.param_bounds[-1] == setup.layout.param_bounds[-1]  # all groups are pulled


def test_a_saving_counts_the_assembled_network() -> None:
    local = {"local": {"kind": "sgd", "lr": 0.05, "epochs": 9}}
    samples_of = {}
    for distill in (0.0, 0.5):
        submodel = {**THIRDS, "saving": 2.0, "distill": distill}
        module, summary = run(make_job(submodel, 3, split=SPLIT, rounds=local))
        samples_of[distill] = summary["samples"] / (4 * 3)
    costs = group_costs(module.graph, (2, 2, 2), 1)
    step = costs.of_groups([0]).training_macs(frozen=False) + costs.of_groups(range(3)).macs
    budget = 120 * full_model_cost(module.graph).training_macs(frozen=False) / 2.0
    assert samples_of[0.5] * step <= budget < (samples_of[0.5] + 20) * step
    assert samples_of[0.5] < samples_of[0.0]


def test_distillation_works_with_overlapped_transfers_and_a_cache() -> None:
    submodel = {**DISTILLED, "trunk": "frozen", "cache": "4 MB"}
    job = make_job(submodel, 3, rounds={"transfer": "optimal"}, split=SPLIT, stop={"rounds": 3})
    result = potluck.simulate(job, task=task(), threads=0)
    assert result.status == "done", result.reason
    assert result.summary["untrained_groups"] == []

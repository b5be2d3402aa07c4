"""The grouped network and its submodels compute the same and use the same names."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from potluck.errors import ModelError
from potluck.model.decoupled import GroupedNetwork, GroupLoss, decouple
from potluck.model.decoupled.group_extractor import indices_in_whole
from potluck.model.layer_chain import trace_layers
from potluck.model.model_replica import ModelReplica
from potluck.model.model_state import ModelState, WeightLayout
from potluck.planning.groups import even_groups
from tests.model.decoupled.networks import SHAPE, samples, small, small_grouped, trained, wake

GROUPS = ((4, 0), (2, 5), (1, 3))


class Reference(nn.Module):
    """The grouped network written with torch's own group convolutions, for widths that divide evenly."""

    def __init__(self, grouped: GroupedNetwork) -> None:
        super().__init__()
        count = len(grouped.spec.groups)
        self.count = count
        self.conv0 = copy.deepcopy(grouped.trunk.get_submodule("0"))
        self.conv2 = nn.Conv2d(8, 12, 3, padding=1)
        self.conv5 = nn.Conv2d(12, 12, 3, padding=1, groups=count)
        self.hidden = nn.Conv1d(12 * 4, 18, 1, groups=count)
        self.head = nn.Conv1d(18, 6 + count, 1, groups=count)
        with torch.no_grad():
            for module, name in ((self.conv2, "2"), (self.conv5, "5"), (self.hidden, "9"), (self.head, "11")):
                states = [grouped.group_branch(group).stages.get_submodule(name).state_dict() for group in range(count)]
                module.weight.copy_(torch.cat([state["weight"] for state in states]).view_as(module.weight))
                assert module.bias is not None
                module.bias.copy_(torch.cat([state["bias"] for state in states]))

    def forward(self, inputs: Tensor) -> Tensor:
        x = torch.relu(self.conv0(inputs))
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = F.max_pool2d(torch.relu(self.conv5(x)), 2)
        logits: Tensor = self.head(torch.relu(self.hidden(x.flatten(1)[:, :, None])))
        return logits[:, :, 0]


def test_all_groups_on_one_device_is_the_grouped_network_trained_centrally() -> None:
    grouped = small_grouped()
    reference, submodel = Reference(grouped), grouped.build_submodel({0, 1, 2})
    inputs, labels = samples()
    torch.testing.assert_close(submodel(inputs), reference(inputs))
    trained(submodel, steps=10)
    loss = GroupLoss(grouped.spec.groups, 6, dict.fromkeys(range(6), 10))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    for _ in range(10):
        optimizer.zero_grad()
        loss(reference(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    torch.testing.assert_close(submodel(inputs), reference(inputs), rtol=1e-4, atol=1e-5)


def test_groups_on_a_frozen_trunk_train_the_same_alone_and_together() -> None:
    grouped = decouple(small(), SHAPE, GROUPS, 1, frozen=True)
    together = grouped.build_submodel({0, 1, 2})
    trained(together)
    for group in range(3):
        single = grouped.build_submodel({group})
        trained(single)
        for name, value in single.state_dict().items():
            torch.testing.assert_close(together.state_dict()[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("depth", [0, 1, 3, 4])
def test_assembled_logits_are_the_sub_models(depth: int, normalised: bool) -> None:
    grouped = decouple(small(), SHAPE, GROUPS, depth, normalised=normalised)
    wake(grouped)
    inputs, _ = samples()
    logits = grouped.assemble()(inputs)
    assert torch.equal(logits, grouped.eval()(inputs))
    for chosen in ({0}, {2, 1}, {0, 1, 2}):
        submodel = grouped.build_submodel(chosen).eval()
        own_classes = [label for group_index in sorted(chosen) for label in GROUPS[group_index]]
        comparable = [group(submodel.trunk(inputs)) for group in submodel.groups.values()]
        torch.testing.assert_close(torch.cat(comparable, dim=1), logits[:, own_classes])
        if not normalised:
            raw = submodel(inputs)
            class_columns = [index for index in range(raw.shape[1]) if index % 3 != 2]  # two classes, then "other"
            torch.testing.assert_close(raw[:, class_columns], logits[:, own_classes])


def test_a_constant_added_to_the_logits_of_a_group_has_no_effect() -> None:
    """A group's softmax does not see a constant added to all its logits; neither may the assembled network."""
    grouped = decouple(small(), SHAPE, GROUPS, 1)
    wake(grouped)
    inputs, _ = samples()
    before = grouped.assemble()(inputs)
    head = grouped.group_branch(1).stages[-1]
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.bias.add_(50.0)
    torch.testing.assert_close(grouped.assemble()(inputs), before, rtol=1e-4, atol=1e-4)


def test_the_readout_is_bayes_rule_for_balanced_training() -> None:
    """From exact balanced odds, groups of any size must recover the exact probabilities of all classes."""
    draws = torch.Generator().manual_seed(0)
    likely = torch.rand(7, 6, generator=draws) + 0.01  # p(x | class), classes equally frequent
    groups = ((0, 1, 2), (3,), (4, 5))
    grouped = decouple(small(), SHAPE, groups, 1)
    wake(grouped)
    logits = torch.empty(7, 6)
    for group, own_classes in enumerate(groups):
        other_classes = [label for label in range(6) if label not in own_classes]
        own_odds = likely[:, list(own_classes)] / (2 * len(own_classes))
        other = likely[:, other_classes].sum(dim=1, keepdim=True) / (2 * len(other_classes))
        logits[:, list(own_classes)] = grouped.group_branch(group).readout(torch.cat([own_odds, other], dim=1).log())
    torch.testing.assert_close(logits.exp(), likely / likely.sum(dim=1, keepdim=True))


def test_an_untrained_group_is_never_predicted_and_is_named() -> None:
    grouped = small_grouped()
    assert grouped.untrained_groups() == (0, 1, 2)
    submodel = grouped.build_submodel({1})
    trained(submodel, steps=1)
    grouped.load_state_dict({**grouped.state_dict(), **submodel.state_dict()})
    assert grouped.untrained_groups() == (0, 2)
    logits = grouped.assemble()(samples()[0])
    assert bool((logits[:, [0, 1, 4, 5]] == -math.inf).all())
    assert bool(logits[:, [2, 3]].isfinite().all())


def test_evaluating_a_group_does_not_count_as_training() -> None:
    grouped = small_grouped()
    submodel = grouped.build_submodel({0}).eval()
    submodel(samples()[0])
    assert not submodel.state_dict()["groups.0.readout.trained"]


def test_parameter_names_agree_between_network_and_submodel() -> None:
    grouped = decouple(small(), SHAPE, GROUPS, 1)
    full = grouped.state_dict()
    submodel = grouped.build_submodel({0, 2})
    assert set(submodel.state_dict()) == set(grouped.trained_names({2, 0}))
    assert all(torch.equal(value, full[name]) for name, value in submodel.state_dict().items())
    assert any(name.startswith("trunk.") for name in grouped.trained_names({1}))
    grouped.frozen = True
    assert all(name.startswith("groups.1.") for name in grouped.trained_names({1}))


def test_a_frozen_trunk_including_its_norms_does_not_change() -> None:
    submodel = decouple(small(), SHAPE, GROUPS, 2, frozen=True).build_submodel({0, 1})
    before = {name: value.clone() for name, value in submodel.trunk.state_dict().items()}
    trained(submodel)
    assert all(torch.equal(value, before[name]) for name, value in submodel.trunk.state_dict().items())
    other = decouple(small(), SHAPE, GROUPS, 2).build_submodel({0, 1})
    trained(other)
    assert not any(
        torch.equal(value, before[name]) for name, value in other.trunk.state_dict().items() if value.dim() > 1
    )


def test_a_submodel_is_a_copy() -> None:
    grouped = small_grouped()
    before = {name: value.clone() for name, value in grouped.state_dict().items()}
    trained(grouped.build_submodel({0}))
    assert all(torch.equal(value, before[name]) for name, value in grouped.state_dict().items())


@pytest.mark.parametrize(("chosen", "message"), [({3}, "there is no group 3"), (set(), "no group was given")])
def test_groups_that_do_not_exist_are_refused(chosen: set[int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        small_grouped().build_submodel(chosen)


def test_network_and_submodels_have_a_layer_layout() -> None:
    """The coordinator flattens the network layer by layer; every value must have an index."""
    grouped = decouple(small(), SHAPE, GROUPS, 1)
    for network in (grouped, grouped.build_submodel({1}), grouped.assemble()):
        chain = trace_layers(network, SHAPE)
        assert chain.exact, chain.note
        owned = [name for layer in chain.layers for name in (*layer.parameters, *layer.buffers)]
        assert sorted(owned) == sorted(network.state_dict())


@pytest.mark.parametrize("frozen", [False, True])
def test_a_submodel_indexes_into_the_vectors_of_the_network(frozen: bool) -> None:
    grouped = decouple(small(), SHAPE, GROUPS, 1, frozen=frozen)
    submodel = grouped.build_submodel({0, 2})
    whole_layout, part_layout = (laid_out(network) for network in (grouped, submodel))
    params, buffers = indices_in_whole(whole_layout, part_layout)
    full, own_odds = ModelState.of_module(grouped, whole_layout), ModelState.of_module(submodel, part_layout)
    assert torch.equal(full.params[params], own_odds.params)
    assert torch.equal(full.buffers[buffers], own_odds.buffers)
    assert len(params.unique()) == len(own_odds.params)  # type: ignore[no-untyped-call]


def test_a_submodel_trains_as_a_replica_and_is_marked_trained() -> None:
    grouped = decouple(small(), SHAPE, GROUPS, 1, frozen=True)
    submodel = grouped.build_submodel({1})
    layout = laid_out(submodel)
    replica = ModelReplica(submodel, layout, GroupLoss(submodel.own_classes, 6))
    before = replica.copy_buffers()
    gradient, _ = replica.gradient(*samples())
    assert len(gradient) == sum(parameter.numel() for parameter in submodel.groups.parameters())
    assert bool(gradient.any())
    change = ModelState(gradient, replica.buffer_change(before)).named_tensors(layout)
    assert float(change["groups.1.readout.trained"]) == 1.0
    assert not change["trunk.0.weight"].any()


def laid_out(network: nn.Module) -> WeightLayout:
    return WeightLayout.of_module(
        network, [(layer.parameters, layer.buffers) for layer in trace_layers(network, SHAPE).layers]
    )


def test_training_learns_with_a_frozen_trunk() -> None:
    grouped = decouple(small(norm=False), SHAPE, even_groups(6, 2), 1, frozen=True)
    losses = trained(grouped.build_submodel({0}), steps=60)
    assert losses[-1] < losses[0] / 3

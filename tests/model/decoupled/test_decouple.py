"""Decoupling networks: every kind of sequential chain, exact costs, kept weights, attribution."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from potluck.errors import ModelError
from potluck.model import zoo
from potluck.model.decoupled import GroupedNetwork, GroupSubmodel, channel_graph, decouple, trace_network
from potluck.model.decoupled.channel_attribution import attribution_choice, channel_scores
from potluck.model.decoupled.decouple import LayerSlice, class_owners, group_slices
from potluck.model.flop_counter import count_macs
from potluck.planning.groups import even_groups, full_model_cost, group_cost
from tests.model.decoupled.networks import SHAPE, Functional, Joining, samples, small

# Network, input, classes, groups, depths; widths divide evenly in some and not in others.
NETWORKS = [
    ("alexnet-cifar", (3, 32, 32), 10, 10, (1,)),
    ("vgg11-bn-cifar", (3, 32, 32), 10, 3, (2,)),
    ("vgg9", (3, 32, 32), 10, 5, (6,)),
    ("ds-cnn", (1, 49, 10), 12, 5, (0, 1)),
    ("cnn", (1, 28, 28), 10, 3, (1,)),
    ("lenet", (1, 28, 28), 10, 4, (0, 3)),
    ("mlp", (1, 28, 28), 10, 5, (1,)),
    ("resnet20", (3, 32, 32), 10, 3, (0, 1, 7)),
    ("resnet50", (3, 64, 64), 10, 5, (1,)),
    ("mobilenet-v2-cifar", (3, 32, 32), 10, 4, (1, 4)),
    ("densenet40", (3, 32, 32), 10, 3, (1, 13)),
    ("googlenet", (3, 64, 64), 10, 2, (3,)),
]


def of_zoo(name: str, classes: int) -> nn.Module:
    torch.manual_seed(0)
    return zoo.build_model(name, classes=classes)


def training_flops(submodel: GroupSubmodel, shape: tuple[int, ...]) -> int:
    batch = 2
    with FlopCounterMode(display=False) as counter:
        submodel(torch.randn(batch, *shape)).sum().backward()
    return int(counter.get_total_flops()) // (2 * batch)


@pytest.mark.parametrize(("name", "shape", "classes", "count", "depths"), NETWORKS)
def test_costs_equal_the_flop_counter(
    name: str, shape: tuple[int, ...], classes: int, count: int, depths: tuple[int, ...]
) -> None:
    network = of_zoo(name, classes)
    graph = channel_graph(trace_network(network, shape))
    assert full_model_cost(graph).macs == count_macs(network, shape)
    assert full_model_cost(graph).weights == sum(parameter.numel() for parameter in network.parameters())
    groups = even_groups(classes, count)
    sizes = [len(own) for own in groups]
    for depth in depths:
        grouped = decouple(network, shape, groups, depth)
        submodel, cost = grouped.build_submodel({0, count - 1}), group_cost(graph, sizes, depth, {0, count - 1})
        assert count_macs(submodel, shape) == cost.macs
        assert sum(parameter.numel() for parameter in submodel.parameters()) == cost.weights


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("depth", [0, 2])
def test_training_costs_equal_the_flop_counter(frozen: bool, depth: int) -> None:
    """Except depthwise layers: the counter charges the weight gradient of a full convolution."""
    grouped = decouple(small(), SHAPE, even_groups(6, 4), depth, frozen=frozen)
    cost = group_cost(grouped.graph, [2, 2, 1, 1], depth, {0, 2})
    assert training_flops(grouped.build_submodel({0, 2}), SHAPE) == cost.training_macs(frozen=frozen)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("depth", [0, 1])
def test_training_costs_of_residual_networks_equal_the_flop_counter(frozen: bool, depth: int) -> None:
    grouped = decouple(of_zoo("resnet20", 10), (3, 32, 32), even_groups(10, 5), depth, frozen=frozen)
    cost = group_cost(grouped.graph, [2] * 5, depth, {0, 2})
    assert training_flops(grouped.build_submodel({0, 2}), (3, 32, 32)) == cost.training_macs(frozen=frozen)


def test_vgg16_savings_match_the_published_table() -> None:
    graph = channel_graph(trace_network(of_zoo("vgg16-bn-cifar", 10), (3, 32, 32)))
    assert full_model_cost(graph).macs / group_cost(graph, [1] * 10, 1).macs > 30
    assert round(full_model_cost(graph).macs / group_cost(graph, [1] * 10, 2).macs, 1) == 7.1


def test_a_functional_forward_is_a_sequential_chain() -> None:
    torch.manual_seed(0)
    network = Functional()
    steps = trace_network(network, SHAPE)
    kinds = [type(step.layer).__name__ for step in steps]
    assert kinds == ["Conv2d", "ReLU", "Conv2d", "ReLU", "MaxPool2d", "Flatten", "Linear", "ReLU", "Linear"]
    inputs, _ = samples(5)
    values: Tensor = inputs
    for step in steps:
        values = step.layer(values)
    assert torch.equal(values, network(inputs))
    grouped = decouple(network, SHAPE, even_groups(6, 2), 1)
    assert count_macs(grouped.build_submodel({1}), SHAPE) == group_cost(channel_graph(steps), [3, 3], 1, [1]).macs


class Shuffling(nn.Module):
    """Reorders channels as ShuffleNet does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3)
        self.head = nn.Linear(8 * 36, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = x.view(x.shape[0], 2, 4, 6, 6).transpose(1, 2).flatten(1)
        logits: Tensor = self.head(x)
        return logits


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3)
        self.head = nn.Linear(8 * 36, 6)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head((0.5 * self.conv(x)).flatten(1))
        return logits


SHARED = nn.Linear(128, 128)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Shuffling(), "the call 'view' cannot be decoupled"),
        (Scaling(), "the call 'mul' cannot be decoupled; only the outputs of layers"),
        (nn.Sequential(nn.Flatten(), nn.Linear(128, 6), nn.ReLU()), "must end in a Linear layer"),
        (nn.Sequential(nn.Flatten(), nn.LayerNorm(128), nn.Linear(128, 6)), "is a LayerNorm"),
        (nn.Sequential(nn.Flatten(), SHARED, nn.ReLU(), SHARED, nn.Linear(128, 6)), "used twice"),
        (nn.Sequential(nn.Flatten(2), nn.Linear(64, 6)), "must flatten to 2"),
    ],
)
def test_a_network_that_cannot_be_decoupled_is_refused_by_name(network: nn.Module, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        trace_network(network, SHAPE)


def test_runs_of_a_grouped_convolution_are_divided_among_groups() -> None:
    network = nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(128, 6)
    )
    for depth in (0, 1, 2):
        grouped = decouple(network, SHAPE, even_groups(6, 2), depth)
        assert count_macs(grouped.build_submodel({0}), SHAPE) == group_cost(grouped.graph, [3, 3], depth).macs
    with pytest.raises(ModelError, match="'0' has 8 channels in 2 inseparable runs, too few for 3 groups"):
        decouple(network, SHAPE, even_groups(6, 3), 0)


def sliced(network: nn.Module, depth: int, count: int, variant: str) -> tuple[int, list[list[LayerSlice]]]:
    """The length of the trunk, and what each group keeps."""
    layers, groups = trace_network(network, SHAPE), even_groups(6, count)
    graph = channel_graph(layers)
    end = graph.trunk_end(depth)
    choices = [attribution_choice(layers, end, groups, [samples()])] if variant == "attributed" else []
    owned = graph.own_channels(end, class_owners(groups), *choices)
    return end, [group_slices(layers, owned, groups, group) for group in range(count)]


@pytest.mark.parametrize("variant", ["structural", "attributed"])
@pytest.mark.parametrize(("network", "count"), [(small, 2), (small, 4), (small, 5), (Joining, 2), (Joining, 3)])
def test_every_channel_belongs_to_exactly_one_group(variant: str, network: Callable[[], nn.Module], count: int) -> None:
    _, slices = sliced(network(), 1, count, variant)
    for layer in zip(*slices, strict=True):
        if layer[0].mixes:
            together = torch.cat([channel_slice.outputs for channel_slice in layer])
            assert sorted(together.tolist()) == list(range(layer[0].step.outputs))
            widths = [len(channel_slice.outputs) for channel_slice in layer]
            assert max(widths) - min(widths) <= 1


@pytest.mark.parametrize("network", [small, Joining])
def test_attributed_groups_keep_the_weights_between_their_channels(network: Callable[[], nn.Module]) -> None:
    whole = network()
    for norm in (layer for layer in whole.modules() if isinstance(layer, nn.BatchNorm2d)):
        assert norm.running_mean is not None
        norm.running_mean.normal_()
    grouped = decouple(whole, SHAPE, even_groups(6, 3), 1, "attributed", samples=[samples()])
    end, slices = sliced(whole, 1, 3, "attributed")
    for step in trace_network(whole, SHAPE)[:end]:
        for name, value in step.layer.state_dict().items():
            assert torch.equal(grouped.trunk.get_submodule(step.name).state_dict()[name], value)
    for group in range(3):
        for channel_slice in slices[group]:
            check_kept_weights(grouped, group, channel_slice)


def check_kept_weights(grouped: GroupedNetwork, group: int, kept: LayerSlice) -> None:
    """The harvested weights of a group are the original ones on every kept entry."""
    branch_state = grouped.group_branch(group).stages.get_submodule(kept.step.name).state_dict()
    for name, value in kept.step.layer.state_dict().items():
        if not value.dim():
            assert torch.equal(branch_state[name], value)
            continue
        expected = value[kept.outputs]
        expected = expected[:, kept.inputs] if value.dim() > 1 and kept.mixes else expected
        assert torch.equal(branch_state[name][: len(expected)], expected), name
    if kept.head:
        assert not branch_state["weight"][-1].any()


def test_channels_are_attributed_to_the_classes_they_serve() -> None:
    """Two networks side by side, each for half of the classes: attribution must recover them."""
    network = small(norm=False)
    network_index = torch.arange(12) % 2
    hidden = torch.arange(18) % 2
    with torch.no_grad():
        convolution, linear, head = network[5], network[9], network[11]
        assert isinstance(convolution, nn.Conv2d)
        assert isinstance(linear, nn.Linear)
        assert isinstance(head, nn.Linear)
        convolution.weight.mul_((network_index[:, None] == network_index[None, :])[:, :, None, None])
        linear.weight.mul_(hidden[:, None] == network_index.repeat_interleave(4)[None, :])
        head.weight.mul_((torch.arange(6) >= 3)[:, None] == (hidden == 1)[None, :])
    layers, groups = trace_network(network, SHAPE), ((0, 1, 2), (3, 4, 5))
    graph = channel_graph(layers)
    end = graph.trunk_end(1)
    choose = attribution_choice(layers, end, groups, [samples(120)])
    owners = {layers[step.index].name: step.outputs for step in graph.own_channels(end, class_owners(groups), choose)}
    assert owners["2"].tolist() == network_index.tolist()
    assert owners["5"].tolist() == network_index.tolist()
    hidden_sets = torch.from_numpy(graph.channel_sets[[layer.name for layer in layers].index("9")])
    alive = channel_scores(layers, end, [samples(120)])[hidden_sets].sum(dim=1) > 0
    assert int(alive.sum()) > 9
    assert torch.equal(torch.from_numpy(owners["9"])[alive], hidden[alive])


def test_scores_are_gradient_times_activation() -> None:
    network = small(norm=False)
    layers = trace_network(network, SHAPE)
    inputs, labels = samples(12)
    graph = channel_graph(layers)
    scores = channel_scores(layers, graph.trunk_end(1), [(inputs[:6], labels[:6]), (inputs[6:], labels[6:])])
    maps = network[:8](inputs).detach().requires_grad_()  # the output of the last convolution
    network[8:](maps).gather(1, labels[:, None]).sum().backward()
    assert maps.grad is not None
    effects = (maps * maps.grad).sum(dim=(2, 3)).abs().detach()
    by_class = torch.stack([effects[labels == label].mean(dim=0) for label in range(6)], dim=1)
    sets = torch.from_numpy(graph.channel_sets[[layer.name for layer in layers].index("5")])
    torch.testing.assert_close(scores[sets], by_class)


def test_attribution_needs_every_class_and_does_not_change_the_network() -> None:
    network = small().train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    inputs, labels = samples()
    decouple(network, SHAPE, even_groups(6, 2), 1, "attributed", samples=[(inputs, labels)], measure="activation")
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    first_classes = labels < 5
    with pytest.raises(ModelError, match="no sample of class 5"):
        decouple(
            network, SHAPE, even_groups(6, 2), 1, "attributed", samples=[(inputs[first_classes], labels[first_classes])]
        )


def test_structural_groups_are_seeded_and_initialised_at_a_reasonable_scale() -> None:
    one, two, other = (decouple(small(norm=False), SHAPE, even_groups(6, 3), 1, seed=seed) for seed in (1, 1, 2))
    states = [network.state_dict() for network in (one, two, other)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    name = "groups.1.stages.5.weight"
    assert not torch.equal(states[0][name], states[2][name])
    fan_in = states[0][name][0].numel()
    assert float(states[0][name].std()) == pytest.approx((2 / fan_in) ** 0.5, rel=0.2)

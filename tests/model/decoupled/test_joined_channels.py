"""Networks whose channels meet in additions, products and concatenations: groups, merging, files."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from potluck.errors import ModelError
from potluck.model import zoo
from potluck.model.decoupled import (
    GroupedNetwork,
    channel_graph,
    decouple,
    load,
    merge_contributions,
    save,
    trace_network,
)
from potluck.model.decoupled.channel_attribution import attribution_choice
from potluck.model.decoupled.decouple import class_owners, group_slices
from potluck.model.layer_chain import trace_layers
from potluck.model.zoo.model_catalogue import CATALOGUE
from potluck.planning.groups import even_groups
from tests.model.decoupled.networks import SHAPE, Joining, contribution, samples, trained, wake

GROUPS = even_groups(6, 3)


def grouped_network(depth: int = 1, **options: object) -> GroupedNetwork:
    return decouple(Joining(), SHAPE, GROUPS, depth, "attributed", samples=[samples()], **options)  # type: ignore[arg-type]


def masks(network: nn.Module, depth: int) -> dict[str, Tensor]:
    """For each weight that connects channels: 1 between channels of one group and from the trunk, 0 between groups."""
    layers = trace_network(network, SHAPE)
    graph = channel_graph(layers)
    end = graph.trunk_end(depth)
    owned = graph.own_channels(
        end, class_owners(GROUPS), attribution_choice(layers, end, GROUPS, [samples()], "gradient")
    )
    found: dict[str, Tensor] = {}
    for group in range(len(GROUPS)):
        for kept in group_slices(layers, owned, GROUPS, group):
            if kept.mixes:
                weight = kept.step.layer.weight
                assert isinstance(weight, Tensor)
                mask = found.setdefault(f"{kept.step.source}.weight", torch.zeros_like(weight))
                mask[kept.outputs[:, None], kept.inputs[None, :]] = 1.0
    return found


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_all_groups_on_one_device_train_as_the_network_without_weights_between_groups(depth: int) -> None:
    """The reference is the original network, whose weights between groups are kept at zero."""
    central, masked = Joining(), masks(Joining(), depth)
    submodel = grouped_network(depth).build_submodel(range(3))
    inputs, labels = samples()
    parameters = dict(central.named_parameters())

    def cut() -> None:
        with torch.no_grad():
            for name, mask in masked.items():
                parameters[name].mul_(mask)

    def class_logits() -> Tensor:
        logits: Tensor = submodel(inputs)
        return logits[:, [column for column in range(9) if column % 3 != 2]]  # two classes, then "other"

    cut()
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9) for network in (central, submodel)]
    for _ in range(6):
        torch.testing.assert_close(class_logits(), central(inputs), rtol=1e-4, atol=1e-5)
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(class_logits(), labels).backward()  # type: ignore[no-untyped-call]
        F.cross_entropy(central(inputs), labels).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        cut()
    torch.testing.assert_close(class_logits(), central(inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("depth", [0, 1, 3, 8])
def test_assembled_logits_are_the_sub_models(depth: int) -> None:
    grouped = decouple(Joining(), SHAPE, GROUPS, depth, normalised=False)
    wake(grouped)
    inputs, _ = samples()
    logits = grouped.assemble()(inputs)
    for group, classes in enumerate(GROUPS):
        torch.testing.assert_close(grouped.build_submodel({group}).eval()(inputs)[:, :-1], logits[:, list(classes)])


def test_merging_the_groups_of_several_devices_returns_each_ones_weights() -> None:
    grouped = grouped_network(frozen=True)
    submodels = [grouped.build_submodel({group}) for group in range(3)]
    for submodel in submodels:
        trained(submodel, steps=3)
    state, report = merge_contributions(
        grouped, [contribution(f"pi-{group}", submodel) for group, submodel in enumerate(submodels)]
    )
    assert report.untrained == ()
    for submodel in submodels:
        assert all(torch.equal(state[name], value) for name, value in submodel.state_dict().items())


def test_a_network_of_joined_channels_survives_its_file(tmp_path: Path) -> None:
    grouped = grouped_network()
    wake(grouped)
    assembled = grouped.assemble()
    loaded = load(save(assembled, tmp_path / "joined.safetensors"))
    inputs, _ = samples()
    assert torch.equal(loaded(inputs), assembled(inputs))


def test_the_layers_of_the_grouped_network_have_all_its_weights() -> None:
    grouped = grouped_network()
    chain = trace_layers(grouped, SHAPE)
    assert chain.exact, chain.note
    owned = [name for layer in chain.layers for name in (*layer.parameters, *layer.buffers)]
    assert sorted(owned) == sorted(grouped.state_dict())


def test_a_tensor_that_is_changed_in_place_is_read_as_changed() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.other = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
            self.relu, self.out = nn.ReLU(inplace=True), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            y = self.other(self.relu(x))
            logits: Tensor = self.out((y + x).mean((2, 3)))  # x is rectified by now
            return logits

    network = InPlace().eval()
    grouped = decouple(network, SHAPE, [range(6)], 2, "attributed", samples=[samples()], normalised=False)
    wake(grouped)
    inputs, _ = samples()
    torch.testing.assert_close(grouped.assemble()(inputs), copy.deepcopy(network)(inputs))


@pytest.mark.parametrize("name", ["resnet18", "resnet18-cifar", "mobilenet-v2", "densenet121", "inception-v4"])
def test_public_networks_can_be_decoupled(name: str) -> None:
    """On shapes alone; sizes are compared with the FLOP counter elsewhere."""
    entry, _ = CATALOGUE[name]
    with torch.device("meta"):
        network = zoo.build_model(name, classes=10)
    graph = channel_graph(trace_network(network, entry.shape))
    depths = sorted(graph.trunk_ends)
    assert depths[:2] == [0, 1]
    assert len(depths) > 5
    assert graph.max_groups(1) >= 8


def test_a_depth_within_a_block_is_refused_in_one_line() -> None:
    with pytest.raises(ModelError, match=r"depth 2 would cut a block .* before 'second'; use 0, 1, 3"):
        decouple(Joining(), SHAPE, GROUPS, 2)

"""Every network of the catalogue: its parameter count, its output, and that it can be split into layers."""

from __future__ import annotations

import functools
import operator

import pytest
import torch
from torch import fx, nn
from torch.utils.flop_counter import FlopCounterMode

from potluck.model import zoo

WANTED = (
    "lenet", "alexnet", "alexnet-cifar", "vgg11", "vgg11-bn", "vgg16", "vgg16-bn", "vgg19", "vgg19-bn",
    "vgg11-bn-cifar", "vgg16-bn-cifar", "vgg19-bn-cifar", "vgg9", "resnet20", "resnet56", "resnet18", "resnet50",
    "resnet152", "resnet18-cifar", "resnet152-cifar", "googlenet", "inception-v4", "mobilenet-v2",
    "mobilenet-v2-cifar", "densenet40", "densenet121", "ds-cnn", "cnn", "mlp", "gpt", "text-encoder",
)  # fmt: skip
PLAIN = (
    nn.Conv2d, nn.BatchNorm2d, nn.Linear, nn.ReLU, nn.ReLU6, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
    nn.Dropout, nn.Flatten,
)  # fmt: skip
# In millions, for one natural input.
MULTIPLY_ADDS = {
    "alexnet": 714,
    "alexnet-cifar": 15,
    "vgg11": 7_609,
    "vgg16-bn-cifar": 313,
    "resnet20": 40.8,
    "resnet18-cifar": 555,
    "resnet50": 4_089,
    "googlenet": 1_498,
    "inception-v4": 12_270,
    "mobilenet-v2": 300.8,
    "densenet121": 2_834,
}
WEIGHTED = (nn.Conv2d, nn.Linear)
KEEP_BIAS_BEFORE_NORM = {"vgg11-bn", "vgg16-bn", "vgg19-bn"}
PICTURE_NETWORKS = [name for name in zoo.model_names() if not zoo.model_entry(name).takes_tokens]
every_network = pytest.mark.parametrize("name", zoo.model_names())
every_picture_network = pytest.mark.parametrize("name", PICTURE_NETWORKS)


@functools.cache
def traced(name: str) -> fx.GraphModule:
    with torch.device("meta"):
        return fx.symbolic_trace(zoo.build_model(name).eval())


def calls(graph: fx.GraphModule, operation: str) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == operation]


def layer_of(graph: fx.GraphModule, node: object) -> nn.Module | None:
    if isinstance(node, fx.Node) and node.op == "call_module":
        return graph.get_submodule(str(node.target))
    return None


def test_the_catalogue_is_complete() -> None:
    assert set(zoo.model_names()) == set(WANTED)


@every_network
def test_number_of_weights_is_the_published_one(name: str) -> None:
    assert sum(weight.numel() for weight in traced(name).parameters()) == zoo.model_entry(name).parameters


@pytest.mark.parametrize("name", [name for name in PICTURE_NETWORKS if name not in MULTIPLY_ADDS])
def test_natural_input_gives_one_score_per_class(name: str) -> None:
    entry = zoo.model_entry(name)
    assert traced(name)(torch.empty(2, *entry.shape, device="meta")).shape == (2, entry.classes)


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_scores_cost_the_published_multiply_adds(name: str) -> None:
    """A wrong stride or padding changes the MACs but not the parameter count."""
    entry = zoo.model_entry(name)
    with FlopCounterMode(display=False) as counter:
        scores = traced(name)(torch.empty(1, *entry.shape, device="meta"))
    assert scores.shape == (1, entry.classes)
    assert counter.get_total_flops() / 2e6 == pytest.approx(MULTIPLY_ADDS[name], rel=0.004)


@every_picture_network
def test_only_plain_layers_sums_and_concatenations_of_channels(name: str) -> None:
    graph = traced(name)
    for node in calls(graph, "call_module"):
        assert isinstance(layer_of(graph, node), PLAIN), node.target
    for node in calls(graph, "call_function"):
        assert node.target in (operator.add, torch.cat)
        assert node.target is not torch.cat or node.kwargs == {"dim": 1}
    assert {node.op for node in graph.graph.nodes} <= {"placeholder", "call_module", "call_function", "output"}


@every_network
def test_every_layer_is_called_exactly_once(name: str) -> None:
    graph = traced(name)
    targets = [node.target for node in calls(graph, "call_module")]
    with_weights = {path.rpartition(".")[0] for path, _ in graph.named_parameters()} - {"position"}
    assert len(targets) == len(set(targets))
    assert with_weights <= set(targets)


@every_network
def test_nothing_works_in_place(name: str) -> None:
    assert not any(getattr(layer, "inplace", False) for layer in traced(name).modules())


@every_picture_network
def test_no_bias_before_batch_norm(name: str) -> None:
    graph = traced(name)
    norms = [node for node in calls(graph, "call_module") if isinstance(layer_of(graph, node), nn.BatchNorm2d)]
    before = [layer_of(graph, node.args[0]) for node in norms]
    biases = [layer.bias is not None for layer in before if isinstance(layer, nn.Conv2d)]
    assert all(biases) if name in KEEP_BIAS_BEFORE_NORM else not any(biases)


@every_network
def test_entries_cite_the_source_of_their_parameter_count(name: str) -> None:
    entry = zoo.model_entry(name)
    assert entry.name == name
    assert entry.source.strip()
    assert entry.summary.strip()
    assert "\n" not in entry.source + entry.summary


@every_picture_network
def test_classes_and_channels_change_the_first_and_last_layer(name: str) -> None:
    _, height, width = zoo.model_entry(name).shape
    with torch.device("meta"):
        layers = [
            layer for layer in zoo.build_model(name, classes=7, channels=2).modules() if isinstance(layer, WEIGHTED)
        ]
    assert layers[0].weight.shape[1] in (2, 2 * height * width)
    assert layers[-1].weight.shape[0] == 7

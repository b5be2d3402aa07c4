"""Layer-by-layer gradients equal those of one backward pass, and layers are announced in order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from potluck.model import zoo
from potluck.model.layer_chain import trace_layers
from potluck.model.layerwise_replica import LayerwiseReplica
from potluck.model.model_replica import ModelReplica
from potluck.model.model_state import WeightLayout


def _replica(name: str, shape: tuple[int, ...], finest: float | None) -> ModelReplica:
    torch.manual_seed(0)
    module = zoo.build_model(name)
    chain = trace_layers(module, shape)
    layout = WeightLayout.of_module(module, [(layer.parameters, layer.buffers) for layer in chain.layers])
    return ModelReplica(module, layout if finest is None else layout.split_layers(finest), F.cross_entropy)


@pytest.mark.parametrize("finest", [None, 0.05])
@pytest.mark.parametrize(
    ("name", "shape"), [("lenet", (1, 28, 28)), ("resnet20", (3, 32, 32)), ("mobilenet-v2-cifar", (3, 32, 32))]
)
def test_layerwise_gradients_equal_plain_ones_in_layer_order(
    name: str, shape: tuple[int, ...], finest: float | None
) -> None:
    replica = _replica(name, shape, finest)
    inputs, targets = torch.randn(4, *shape), torch.randint(10, (4,))
    buffers = replica.copy_buffers().clone()
    expected, loss = replica.gradient(inputs, targets, np.random.default_rng(1))
    expected = expected.clone()
    replica.state.buffers.copy_(buffers)
    replica.sync_counters()
    started: list[int] = []
    ready: list[int] = []
    halfway: list[float] = []
    layers = list(range(replica.layout.layer_count))
    gradient, layerwise_loss = LayerwiseReplica(replica, shape).gradient(
        inputs,
        targets,
        np.random.default_rng(1),
        before_layer=started.append,
        after_forward=halfway.append,
        layer_ready=ready.append,
    )
    assert torch.equal(gradient, expected)
    assert layerwise_loss == loss == halfway[0]
    assert started == layers
    assert ready == layers[::-1]


def test_a_ready_gradient_is_final() -> None:
    """Once a layer is announced as ready, its gradient no longer changes."""
    replica = _replica("resnet20", (3, 32, 32), None)
    layerwise = LayerwiseReplica(replica, (3, 32, 32))
    ready: dict[int, torch.Tensor] = {}

    def keep(layer: int) -> None:
        params, _ = replica.layout.layer_slices(layer, layer)
        ready[layer] = layerwise.flat_gradient[params].clone()

    gradient, _ = layerwise.gradient(torch.randn(4, 3, 32, 32), torch.randint(10, (4,)), None, layer_ready=keep)
    for layer, early in ready.items():
        params, _ = replica.layout.layer_slices(layer, layer)
        assert torch.equal(early, gradient[params])


def test_split_layouts_hold_the_same_values() -> None:
    layout = _replica("lenet", (1, 28, 28), None).layout
    fine = layout.split_layers(0.05)
    assert fine.params == layout.params
    assert fine.param_bounds[-1] == layout.param_bounds[-1]
    assert set(layout.param_bounds) <= set(fine.param_bounds)
    assert set(layout.buffer_bounds) <= set(fine.buffer_bounds)
    most = max(end - start for start, end in zip(fine.param_bounds, fine.param_bounds[1:], strict=False))
    assert most <= 0.05 * layout.param_bounds[-1] + 1
    assert [unit for units in fine.split_ranges() for unit in units] == list(range(fine.layer_count))

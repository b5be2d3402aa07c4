"""A narrow network equals the full one with masked channels: the same gradient, and nothing else changes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from potluck.model.model_replica import ModelReplica
from potluck.model.model_state import ModelState, WeightLayout, bind_views
from potluck.model.submodels.narrow_replica import NarrowReplicaCache, build_small_model
from potluck.model.submodels.slimmable_model import (
    SlimmableModel,
    choose_subsets,
    leading_units,
    random_units,
    trace_slimmable,
)
from potluck.model.submodels.submodel_selection import KeptIndices, Subsets
from potluck.model.submodels.width_workspace import WidthWorkspace
from tests.model.submodels.networks import LARGE, NETWORKS, traced

F64 = torch.float64
cross_entropy = nn.functional.cross_entropy


def batch(shape: tuple[int, ...], size: int = 3, dtype: torch.dtype = F64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(size, *shape, generator=generator, dtype=dtype)
    return inputs, torch.arange(size) % 5


def drawn(slimmable: SlimmableModel, fraction: float, seed: int = 0) -> Subsets:
    rng = np.random.default_rng(seed)
    rates = np.clip(rng.normal(1 - fraction, 0.15, len(slimmable.sets)), 0, 0.9)
    return choose_subsets(slimmable, slimmable.kept_counts([float(rate) for rate in rates]), random_units(rng))


def hide(module: nn.Module, slimmable: SlimmableModel, subsets: Subsets, scaled: bool) -> None:
    """Feed zeros for dropped channels to every layer that mixes channels."""
    for name, axes in slimmable.axes.items():
        if axes.columns is None:
            continue
        columns = KeptIndices(subsets).axis_indices(axes.columns)
        if columns is None:
            continue
        mask = torch.zeros(sum(run.units * run.features for run in axes.columns), dtype=F64)
        mask[torch.from_numpy(columns)] = 1.0
        start = 0
        for run in axes.columns:
            stop = start + run.units * run.features
            if run.set is not None and subsets[run.set] is not None and scaled:
                mask[start:stop] *= run.units / len(subsets[run.set])  # type: ignore[arg-type]
            start = stop
        module.get_submodule(name.rpartition(".")[0]).register_forward_pre_hook(
            lambda _, args, mask=mask: (args[0] * mask.view(1, -1, *[1] * (args[0].dim() - 2)),)
        )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LARGE else ()) for name in NETWORKS]
)
@pytest.mark.parametrize("scaled", [True, False])
def test_the_gradient_equals_that_of_the_full_network_with_masked_channels(name: str, scaled: bool) -> None:
    slimmable, shape = traced(name, F64)
    module = slimmable.chain.module
    subsets, (inputs, targets) = drawn(slimmable, 0.5), batch(shape)
    masked = copy.deepcopy(module)
    hide(masked, slimmable, subsets, scaled)
    reference = ModelReplica(masked, slimmable.layout, cross_entropy)
    expected, expected_loss = reference.gradient(inputs, targets)

    replica = ModelReplica(module, slimmable.layout, cross_entropy)
    submodel = WidthWorkspace(slimmable, replica, scaled=scaled).extract_submodel(subsets)
    gradient, loss = submodel.replica.gradient(inputs, targets)
    submodel.close()
    assert submodel.selection is not None
    chosen = expected[submodel.selection.params.index]
    assert loss == pytest.approx(expected_loss, rel=1e-10)
    assert float((gradient - chosen).abs().max()) <= 1e-10 * max(1.0, float(chosen.abs().max()))
    statistics = submodel.selection.buffers.index
    difference = replica.copy_buffers()[statistics] - reference.copy_buffers()[statistics]
    assert len(statistics) == 0 or float(difference.abs().max()) <= 1e-10
    assert len(submodel.selection.params.index) < len(expected)


@pytest.mark.parametrize("name", ["vgg9", "resnet20", "ds-cnn", "densenet40", "by hand", "grouped"])
def test_full_width_equals_plain_training_exactly(name: str) -> None:
    slimmable, shape = traced(name)
    module = slimmable.chain.module
    all_units: Subsets = [np.arange(channels.size) for channels in slimmable.sets]
    data = batch(shape, dtype=torch.float32)
    reference, loaned = (ModelReplica(module, slimmable.layout, cross_entropy) for _ in range(2))
    workspace = WidthWorkspace(slimmable, loaned, scaled=True)
    losses = []
    for subsets in ([None] * len(slimmable.sets), all_units, all_units):
        gradient, loss = reference.gradient(*data)
        reference.state.params.add_(gradient, alpha=-0.01)
        update = workspace.train_step(subsets, data, lambda weights, gradient, _: weights.add_(gradient, alpha=-0.01))
        losses.append((loss, update))
    assert all(one == other for one, other in losses)
    assert torch.equal(reference.state.params, loaned.state.params)
    assert torch.equal(reference.copy_buffers(), loaned.copy_buffers())


@pytest.mark.parametrize("name", ["resnet20", "mobilenet-v2-cifar", "gated"])
def test_dropped_weights_and_their_momentum_do_not_change(name: str) -> None:
    slimmable, shape = traced(name)
    module = slimmable.chain.module
    replica = ModelReplica(module, slimmable.layout, cross_entropy)
    subsets = drawn(slimmable, 0.4)
    index = slimmable.select_units(subsets).params.index
    outside = torch.ones_like(replica.state.params, dtype=torch.bool)
    outside[index] = False
    statistics = torch.ones_like(replica.state.buffers, dtype=torch.bool)
    statistics[slimmable.select_units(subsets).buffers.index] = False
    weights, buffers = replica.state.params.clone(), replica.copy_buffers()
    velocity = torch.linspace(1, 2, len(weights))
    before = velocity.clone()

    def descend(weights: Tensor, gradient: Tensor, slow: Tensor | None) -> None:
        assert slow is not None
        slow.mul_(0.9).add_(gradient.add(weights, alpha=0.1))
        weights.add_(slow, alpha=-0.01)

    WidthWorkspace(slimmable, replica, scaled=True).train_step(
        subsets, batch(shape, dtype=torch.float32), descend, velocity
    )
    assert torch.equal(replica.state.params[outside], weights[outside])
    assert torch.equal(velocity[outside], before[outside])
    assert torch.equal(replica.copy_buffers()[statistics], buffers[statistics])
    assert bool((replica.state.params[index] != weights[index]).all())
    assert bool((velocity[index] != before[index]).all())


def test_counters_count_every_step_at_any_width() -> None:
    slimmable, shape = traced("resnet20")
    module = slimmable.chain.module
    replica = ModelReplica(module, slimmable.layout, cross_entropy)
    workspace = WidthWorkspace(slimmable, replica, scaled=True)
    for seed in range(3):
        workspace.train_step(drawn(slimmable, 0.5, seed), batch(shape, dtype=torch.float32), lambda *_: None)
    replica.gradient(*batch(shape, dtype=torch.float32))
    tensors = ModelState(replica.state.params, replica.copy_buffers()).named_tensors(slimmable.layout)
    assert float(tensors["bn1.num_batches_tracked"]) == 4.0


def test_static_batch_norm_keeps_its_statistics_at_any_width() -> None:
    slimmable, shape = traced("resnet20")
    module = slimmable.chain.module
    replica = ModelReplica(module, slimmable.layout, cross_entropy)
    before, weights = replica.copy_buffers(), replica.state.params.clone()
    workspace = WidthWorkspace(slimmable, replica, scaled=False, static=True)
    for subsets in ([None] * len(slimmable.sets), drawn(slimmable, 0.5)):
        workspace.train_step(subsets, batch(shape, dtype=torch.float32), lambda w, g, _: w.add_(g, alpha=-0.1))
    assert torch.equal(replica.copy_buffers(), before)
    assert not torch.equal(replica.state.params, weights)


def test_narrow_strided_convolutions_accept_channels_last_inputs() -> None:
    """oneDNN's weight gradient of a strided 1×1 convolution of 4 such channels once aborted the process."""
    slimmable, shape = traced("resnet20")
    module = slimmable.chain.module
    subsets = choose_subsets(slimmable, slimmable.kept_counts([0.75] * len(slimmable.sets)), leading_units)
    inputs, targets = batch(shape, 32, torch.float32)

    def gradient(arranged: Tensor) -> Tensor:
        submodel = WidthWorkspace(
            slimmable, ModelReplica(module, slimmable.layout, cross_entropy), scaled=True
        ).extract_submodel(subsets)
        return submodel.replica.gradient(arranged, targets)[0]

    last = inputs.contiguous(memory_format=torch.channels_last)
    assert float(torch.cosine_similarity(gradient(inputs), gradient(last), dim=0)) > 0.9999


def test_an_extracted_model_trains_independently() -> None:
    slimmable, shape = traced("vgg9")
    module = slimmable.chain.module
    counts = slimmable.kept_counts([0.5] * len(slimmable.sets))
    small = build_small_model(slimmable, counts)
    retraced = trace_slimmable(small, shape)
    assert retraced.full_counts == counts
    assert retraced.full_macs == slimmable.forward_macs(counts)
    inputs, _ = batch(shape, 64, torch.float32)
    with torch.no_grad():
        assert 0.3 < float(small(inputs).std() / module(inputs).std()) < 3.0


def test_dropping_and_scaling_keeps_the_expected_output_of_a_linear_network() -> None:
    """Inverted dropout: over many subsets the mean output is that of the full network."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 40), nn.Linear(40, 3)).double()
    slimmable = trace_slimmable(module, (6,), dtype=F64)
    inputs = torch.randn(4, 6, dtype=F64)
    replica = ModelReplica(module, slimmable.layout, cross_entropy)
    workspace, rng, total = (
        WidthWorkspace(slimmable, replica, scaled=True),
        np.random.default_rng(0),
        torch.zeros(4, 3, dtype=F64),
    )
    for _ in range(600):
        submodel = workspace.extract_submodel(choose_subsets(slimmable, (20,), random_units(rng)))
        (outputs,) = submodel.replica.outputs([(inputs, inputs)])
        total += outputs[0]
    assert torch.allclose(total / 600, module(inputs).detach(), atol=0.06)


def test_binding_a_narrow_layout_keeps_names_and_order() -> None:
    slimmable, _ = traced("densenet40")
    small = build_small_model(slimmable, slimmable.kept_counts([0.3] * len(slimmable.sets)))
    layers = [(layer.parameters, layer.buffers) for layer in slimmable.chain.layers]
    layout = WeightLayout.of_module(small, layers)
    assert [entry.name for entry in layout.params] == [entry.name for entry in slimmable.layout.params]
    assert len(bind_views(small, layout).params) == layout.param_bounds[-1]


def test_the_least_recently_used_networks_are_evicted() -> None:
    slimmable, _ = traced("mlp")
    smalls = NarrowReplicaCache(slimmable, cross_entropy, scaled=True, most=2)
    first = smalls.get_replica((3, 3))
    smalls.get_replica((4, 4))
    assert smalls.get_replica((3, 3)) is first
    smalls.get_replica((5, 5))
    assert smalls.get_replica((3, 3)) is first
    assert first.state.params.shape == (64 * 3 + 3 + 3 * 3 + 3 + 3 * 10 + 10,)


def test_the_layers_of_the_original_model_are_never_changed() -> None:
    slimmable, shape = traced("resnet20")
    before = {name: tensor.clone() for name, tensor in slimmable.chain.module.state_dict().items()}
    WidthWorkspace(
        slimmable, ModelReplica(slimmable.chain.module, slimmable.layout, cross_entropy), scaled=True
    ).train_step(
        drawn(slimmable, 0.5), batch(shape, dtype=torch.float32), lambda weights, gradient, _: weights.sub_(gradient)
    )
    assert all(torch.equal(before[name], tensor) for name, tensor in slimmable.chain.module.state_dict().items())
    assert not any(layer.inplace for layer in slimmable.chain.module.modules() if isinstance(layer, nn.ReLU))

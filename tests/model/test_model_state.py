from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from potluck.errors import ModelError
from potluck.model.model_state import ModelState, WeightLayout, bind_views


def _norm_net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 36, 5))


def _layers(module: nn.Module) -> list[tuple[list[str], list[str]]]:
    """Each child with parameters or buffers is a layer."""
    layers = []
    for name, child in module.named_children():
        params = [f"{name}.{inner}" for inner, _ in child.named_parameters()]
        buffers = [f"{name}.{inner}" for inner, _ in child.named_buffers()]
        if params or buffers:
            layers.append((params, buffers))
    return layers


def _layout(module: nn.Module) -> WeightLayout:
    return WeightLayout.of_module(module, _layers(module))


def test_a_state_holds_every_tensor_by_name() -> None:
    module = _norm_net()
    layout = _layout(module)
    tensors = ModelState.of_module(module, layout).named_tensors(layout)
    assert tensors.keys() == module.state_dict().keys()
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensors[name], tensor.to(torch.float32))
        assert tensors[name].shape == tensor.shape


def test_a_state_is_a_copy() -> None:
    module = _norm_net()
    layout = _layout(module)
    state = ModelState.of_module(module, layout)
    before = state.params.clone()
    with torch.no_grad():
        for param in module.parameters():
            param.zero_()
    assert torch.equal(state.params, before)


@settings(deadline=None)
@given(data=st.data())
def test_segments_are_slices_that_cover_the_model_once(data: st.DataObject) -> None:
    module = _norm_net()
    layout = _layout(module)
    state = ModelState.of_module(module, layout)
    cuts = sorted(data.draw(st.sets(st.integers(1, layout.layer_count - 1))))
    bounds = [0, *cuts, layout.layer_count]
    slices = [layout.layer_slices(first, after - 1) for first, after in itertools.pairwise(bounds)]
    assert torch.equal(torch.cat([state.params[params] for params, _ in slices]), state.params)
    assert torch.equal(torch.cat([state.buffers[buffers] for _, buffers in slices]), state.buffers)
    total = sum(layout.segment_bytes(first, after - 1) for first, after in itertools.pairwise(bounds))
    assert total == layout.nbytes == 4 * (state.params.numel() + state.buffers.numel())


def test_a_layer_without_parameters_is_an_empty_slice() -> None:
    module = nn.Sequential(nn.Linear(2, 3))
    layout = WeightLayout.of_module(module, [([], []), (["0.weight", "0.bias"], []), ([], [])])
    assert layout.layer_count == 3
    assert layout.segment_bytes(0, 0) == layout.segment_bytes(2, 2) == 0
    assert layout.segment_bytes(1, 1) == layout.segment_bytes(0, 2) == layout.nbytes == 36


def test_writing_to_the_bound_vectors_is_loading_the_model() -> None:
    module = _norm_net()
    layout = _layout(module)
    state = bind_views(module, layout)
    state.params.fill_(0.5)
    state.buffers.fill_(2.0)
    assert all(bool((param == 0.5).all()) for param in module.parameters())
    assert bool((module[1].running_mean == 2.0).all())  # type: ignore[index]
    with torch.no_grad():
        next(module.parameters()).zero_()
    assert bool((state.params[: layout.params[0].stop] == 0).all())


def test_a_bound_model_computes_and_trains_as_before() -> None:
    torch.manual_seed(0)
    inputs, targets = torch.randn(8, 1, 8, 8), torch.randint(0, 5, (8,))
    bound, plain = _norm_net(), _norm_net()
    state = bind_views(bound, _layout(bound))
    for module in (bound, plain):
        loss = nn.functional.cross_entropy(module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9).step()
    assert torch.equal(state.params, ModelState.of_module(plain, _layout(plain)).params)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(bound.state_dict()[name], tensor), name


def test_integer_counters_keep_their_type() -> None:
    module = _norm_net()
    layout = _layout(module)
    bind_views(module, layout)
    counter = module[1].num_batches_tracked  # type: ignore[index]
    assert counter.dtype == torch.int64
    module(torch.randn(4, 1, 8, 8))
    assert int(counter) == 1


def test_frozen_parameters_are_kept_and_not_trained() -> None:
    module = _norm_net()
    module[0].weight.requires_grad_(False)  # type: ignore[index]
    layout = _layout(module)
    assert "0.weight" not in [entry.name for entry in layout.params]
    assert "0.weight" in [entry.name for entry in layout.buffers]
    assert torch.equal(ModelState.of_module(module, layout).named_tensors(layout)["0.weight"], module[0].weight)  # type: ignore[index]
    state = bind_views(module, layout)
    state.buffers.zero_()
    assert not module[0].weight.any()  # type: ignore[index]
    assert not module[0].weight.requires_grad  # type: ignore[index]


def test_tied_weights_are_stored_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(4, 4, bias=False)
            self.two = nn.Linear(4, 4, bias=False)
            self.two.weight = self.one.weight

    module = Tied()
    layout = WeightLayout.of_module(module, [(["one.weight"], [])])
    state = bind_views(module, layout)
    state.params.fill_(3.0)
    assert state.params.numel() == 16
    assert bool((module.two.weight == 3.0).all())


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3, 4)])
def test_parameters_of_any_shape(shape: tuple[int, ...]) -> None:
    module = nn.Module()
    module.scale = nn.Parameter(torch.ones(shape))
    module.more = nn.Parameter(torch.ones(2))
    layout = WeightLayout.of_module(module, [(["scale", "more"], [])])
    state = bind_views(module, layout)
    state.params.fill_(7.0)
    assert module.scale.shape == shape
    assert bool((module.scale == 7.0).all())


def test_memory_order_does_not_matter() -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 3))
    spread = nn.Sequential(nn.Conv2d(2, 3, 3))
    spread.load_state_dict(module.state_dict())
    spread = spread.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert torch.equal(
        ModelState.of_module(module, _layout(module)).params, ModelState.of_module(spread, _layout(spread)).params
    )


def test_mixed_types_are_refused() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ModelError, match=r"one dtype, got torch\.float32, torch\.float64"):
        _layout(module)


def test_nothing_to_train_is_refused() -> None:
    module = nn.Sequential(nn.Linear(2, 2)).requires_grad_(False)
    with pytest.raises(ModelError, match="nothing to train"):
        _layout(module)


def test_bfloat16_is_refused_because_it_cannot_be_sent() -> None:
    bfloat16 = _norm_net().to(torch.bfloat16)
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(torch.bfloat16))
    for module in (bfloat16, mixed):
        with pytest.raises(ModelError, match="bfloat16 parameters cannot be sent"):
            _layout(module)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_types_are_kept(dtype: torch.dtype) -> None:
    module = _norm_net().to(dtype)
    layout = _layout(module)
    state = ModelState.of_module(module, layout)
    assert layout.dtype == state.params.dtype == state.buffers.dtype == dtype
    assert layout.itemsize == dtype.itemsize

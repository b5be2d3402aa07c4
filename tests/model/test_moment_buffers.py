from __future__ import annotations

import torch
from torch import nn

from potluck.model.model_replica import ModelReplica
from potluck.model.model_state import ModelState, WeightLayout
from potluck.model.moment_buffers import add_moment_buffers, read_moments, write_moments

MOMENTS = {"exp_avg": True, "exp_avg_sq": True, "step": False}


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def _layout(module: nn.Module) -> WeightLayout:
    tables = [[name for name, _ in named] for named in (module.named_parameters(), module.named_buffers())]
    params, buffers = [
        [[name for name in table if name.startswith(f"{index}.")] for index in range(4)] for table in tables
    ]
    return WeightLayout.of_module(module, list(zip(params, buffers, strict=True)))


def test_moments_follow_the_buffers_of_their_layer() -> None:
    plain = _layout(_net())
    layout = add_moment_buffers(plain, MOMENTS)
    assert layout.params == plain.params
    for layer in range(4):
        params, buffers = layout.layer_slices(layer, layer)
        _, before = plain.layer_slices(layer, layer)
        extra = buffers.stop - buffers.start - (before.stop - before.start)
        assert extra == 2 * (params.stop - params.start) + (layer == 3)
    assert layout.nbytes == plain.nbytes + 4 * (2 * plain.param_bounds[-1] + 1)


def test_a_state_is_read_as_it_was_written_and_the_models_own_buffers_stay() -> None:
    module = _net()
    layout = add_moment_buffers(_layout(module), MOMENTS)
    replica = ModelReplica(module, layout, nn.functional.cross_entropy)
    size = layout.param_bounds[-1]
    state = {"exp_avg": torch.randn(size), "exp_avg_sq": torch.rand(size), "step": torch.tensor(7.0)}
    fresh = read_moments(layout, replica.state.buffers)
    assert {name: value.shape for name, value in fresh.items()} == {name: value.shape for name, value in state.items()}
    assert not any(value.any() for value in fresh.values())
    write_moments(layout, state, replica.state.buffers)
    for name, value in read_moments(layout, replica.state.buffers).items():
        assert torch.equal(value, state[name]), name
    named = ModelState(replica.state.params, replica.state.buffers).named_tensors(layout)
    for name, buffer in module.named_buffers():
        assert torch.equal(named[name], buffer.to(torch.float32)), name

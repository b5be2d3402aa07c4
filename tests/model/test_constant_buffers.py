"""Buffers that training does not change are found, whatever way the others are written."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from potluck.errors import ModelError
from potluck.model.frozen_weights import TensorGuard
from potluck.model.layer_chain import trace_layers
from potluck.model.model_state import WeightLayout


class Recorder(nn.Module):
    """A layer with a constant buffer and one that its forward pass changes in the given way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.linear = nn.Linear(3, 3)
        self.register_buffer("mask", torch.full((3,), -torch.inf))
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("table", torch.ones(3), persistent=False)
        self.mask: Tensor
        self.seen: Tensor
        self.table: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        if self.how == "in place":
            self.seen.mul_(0.9).add_(inputs.detach().mean(0), alpha=0.1)
        elif self.how == "data":
            self.seen.data.add_(1)
        elif self.how == "replaced":
            self.seen = self.seen + 1
        elif self.how == "batch norm":
            inputs = nn.functional.batch_norm(inputs, self.seen, self.table, training=True)
        elif self.how == "view":
            self.seen[0] += 1
        return self.linear(inputs) + self.mask.isinf()  # type: ignore[no-any-return]


def _constants(module: nn.Module, shape: tuple[int, ...] = (3,)) -> set[str]:
    return {name for layer in trace_layers(module, shape).layers for name in layer.constants}


@pytest.mark.parametrize("how", ["in place", "data", "replaced", "view"])
def test_a_buffer_that_a_training_step_writes_is_not_constant(how: str) -> None:
    assert _constants(Recorder(how)) == {"mask", "table"}


def test_statistics_of_a_batch_norm_of_ones_own_are_not_constant() -> None:
    assert _constants(Recorder("batch norm")) == {"mask"}


def test_a_buffer_that_nothing_writes_is_constant() -> None:
    assert _constants(Recorder("")) == {"mask", "seen", "table"}


def test_statistics_of_norm_layers_always_change_even_if_they_are_not_used() -> None:
    assert _constants(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval())) == set()


def test_a_module_may_name_the_buffers_that_it_changes() -> None:
    module = Recorder("")
    module.changing_buffers = ("seen",)  # type: ignore[assignment]
    assert _constants(module) == {"mask", "table"}


def test_where_the_model_cannot_run_without_values_only_persistent_buffers_may_change() -> None:
    class Asking(Recorder):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) if float(inputs.sum()) > 0 else self.linear(inputs)

    assert _constants(Asking("in place")) == {"table"}


@pytest.mark.parametrize("how", ["in place", "replaced"])
def test_a_constant_that_changes_after_all_is_noticed(how: str) -> None:
    module = Recorder(how)
    layout = WeightLayout.of_module(module, [(["linear.weight", "linear.bias"], [])], frozen=False)
    guard = TensorGuard(module, layout)
    guard.check()
    module(torch.ones(2, 3))
    with pytest.raises(ModelError, match=r"'seen' changed in training.*changing_buffers"):
        guard.check()

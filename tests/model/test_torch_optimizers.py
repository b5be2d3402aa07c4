from __future__ import annotations

from typing import Any

import pytest
import torch

from potluck.errors import SettingError
from potluck.model.local_training import LocalTraining
from potluck.model.optimizers import Optimizer
from potluck.model.torch_optimizers import OptimizerScope, build_by_name, probe_optimizer
from potluck.settings import decode_settings, encode_settings


class JointNorm(torch.optim.Optimizer):
    """Normalises the gradients of all tensors together, and counts its steps in a plain number."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        params = [param for param in group["params"] if param.grad is not None]
        norm = torch.cat([param.grad.reshape(-1) for param in params]).norm()
        for param in params:
            self.state[param]["step"] = self.state[param].get("step", 0) + 1
            param.sub_(param.grad / norm, alpha=group["lr"])


class NoRate(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {})


@pytest.mark.parametrize(
    ("name", "scope", "vectors", "scalars", "zero"),
    [
        ("torch.optim.AdamW", OptimizerScope.WEIGHT, {"exp_avg", "exp_avg_sq"}, {"step"}, True),
        ("torch.optim.RMSprop", OptimizerScope.WEIGHT, {"square_avg"}, {"step"}, True),
        ("torch.optim.NAdam", OptimizerScope.WEIGHT, {"exp_avg", "exp_avg_sq"}, {"step", "mu_product"}, False),
        ("torch.optim.Rprop", OptimizerScope.WEIGHT, {"prev", "step_size"}, {"step"}, False),
        ("torch.optim.Muon", OptimizerScope.TENSOR, {"momentum_buffer"}, set(), True),
        (f"{__name__}:JointNorm", OptimizerScope.MODEL, set(), set(), True),
    ],
)
def test_what_is_observed_of_an_optimizer(
    name: str, scope: OptimizerScope, vectors: set[str], scalars: set[str], zero: bool
) -> None:
    traits = probe_optimizer(lambda params: build_by_name(name, params, 0.01, {}))
    assert traits.scope is scope
    assert {moment for moment, vector in traits.moments.items() if vector} == vectors
    assert {moment for moment, vector in traits.moments.items() if not vector} == scalars
    assert traits.starts_at_zero == zero
    assert traits.has_numbers == name.endswith("JointNorm")


def test_adafactor_looks_at_whole_tensors() -> None:
    traits = probe_optimizer(lambda params: build_by_name("torch.optim.Adafactor", params, 0.01, {}))
    assert traits.scope is OptimizerScope.TENSOR


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("torch.optim.LBFGS", {}, "closure"),
        ("torch.optim.SparseAdam", {}, "dense gradients"),
        ("torch.optim.Adamm", {}, "has no 'Adamm'"),
        ("RMSprop", {}, "write torch.optim.RMSprop"),
        ("torch.nn.Linear", {}, "not a torch.optim.Optimizer"),
        ("torch.optim.RMSprop", {"alfa": 0.9}, "options: .*unexpected keyword argument 'alfa'"),
        ("torch.optim.RMSprop", {"alpha": -1}, "options: .*alpha"),
        ("torch.optim.RMSprop", {"lr": 0.1}, "beside `options`"),
        (f"{__name__}:NoRate", {}, "no learning rate"),
    ],
)
@pytest.mark.parametrize("family", [LocalTraining, Optimizer])
def test_an_optimizer_that_cannot_be_used_is_refused(
    family: Any, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message) as raised:
        decode_settings({"kind": "optimizer", "name": name, "options": options}, family, "rounds.local")
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith("rounds.local")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torch.optim.Adafactor", "whole tensors"),
        (f"{__name__}:JointNorm", "whole tensors"),
        ("torch.optim.Rprop", "state of zeros"),
    ],
)
def test_the_coordinator_refuses_what_its_vector_cannot_serve(name: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        decode_settings({"kind": "optimizer", "name": name}, Optimizer, "rounds.server")


def test_a_named_optimizer_is_written_and_read_again() -> None:
    raw = {"kind": "optimizer", "name": "torch.optim.AdamW", "lr": 0.02, "options": {"betas": [0.8, 0.9]}}
    for family in (LocalTraining, Optimizer):
        settings: Any = decode_settings(raw, family)
        assert decode_settings(encode_settings(settings), family) == settings
    built = build_by_name("torch.optim.AdamW", [torch.zeros(2)], 0.02, {"betas": [0.8, 0.9]})
    assert built.param_groups[0]["betas"] == (0.8, 0.9)

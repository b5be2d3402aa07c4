from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.errors import SettingError
from potluck.model.codecs import DenseCodec
from potluck.model.lr_schedules import ConstantSchedule, CosineSchedule, LearningRateSchedule, StepSchedule
from potluck.model.model_replica import ModelTemplate
from potluck.model.model_state import ModelState, WeightLayout
from potluck.model.optimizers import (
    Adam,
    AdamW,
    Optimizer,
    Sgd,
    TorchOptimizer,
)
from potluck.model.torch_server import TorchServer
from potluck.model.torch_trainer import ReceivedSegment
from potluck.model.update_merging import SampleWeighted
from potluck.payload import Payload
from potluck.settings import decode_settings


def _net() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 11, bias=False), nn.Linear(11, 3))


def _layout(module: nn.Module) -> WeightLayout:
    return WeightLayout.of_module(module, [([name for name, _ in module.named_parameters()], [])])


def _server(module: nn.Module, optimizer: Optimizer) -> TorchServer:
    return TorchServer(
        ModelTemplate(module, _layout(module), F.cross_entropy), None, SampleWeighted(), optimizer, DenseCodec()
    )


def _gradient(size: int, round: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(round))


def _update_of(vector: Tensor) -> ReceivedSegment:
    return ReceivedSegment(0, 0, Payload(vector.nbytes, (vector.numpy(), torch.zeros(0).numpy())))


def _plain_steps(module: nn.Module, optimizer: torch.optim.Optimizer, lrs: list[float]) -> None:
    """The torch optimizer applied to each tensor separately."""
    size = sum(param.numel() for param in module.parameters())
    for round, lr in enumerate(lrs):
        gradients = torch.split(_gradient(size, round), [param.numel() for param in module.parameters()])
        for param, gradient in zip(module.parameters(), gradients, strict=True):
            param.grad = gradient.view_as(param).clone()
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()


def _server_steps(server: TorchServer, factors: list[float], first: int = 0) -> None:
    for round, factor in enumerate(factors, first):
        server.add_update([_update_of(_gradient(server.state.params.numel(), round))], None, samples=32, staleness=0)
        server.step(factor)


SGDS = [
    Sgd(lr=0.1),
    Sgd(lr=0.1, momentum=0.9),
    Sgd(lr=0.1, momentum=0.9, nesterov=True),
    Sgd(lr=0.1, momentum=0.9, weight_decay=0.01),
]
ADAMS = [
    Adam(),
    Adam(lr=0.01, epsilon=1e-3, beta1=0.8, beta2=0.95),
    Adam(weight_decay=0.1),
    AdamW(lr=0.01, weight_decay=0.1),
]
NAMED = [TorchOptimizer(name="torch.optim.RMSprop", lr=0.01, options={"momentum": 0.9, "centered": True})]


@pytest.mark.parametrize("settings", SGDS)
def test_sgd_on_the_flat_vector_equals_torch_per_tensor(settings: Sgd) -> None:
    module, factors = _net(), [1.0, 1.0, 0.5, 0.5, 0.1]
    server = _server(module, settings)
    _server_steps(server, factors)
    plain = torch.optim.SGD(
        module.parameters(),
        lr=0.1, momentum=settings.momentum, weight_decay=settings.weight_decay, nesterov=settings.nesterov,
    )  # fmt: skip
    _plain_steps(module, plain, [0.1 * factor for factor in factors])
    assert torch.equal(server.state.params, ModelState.of_module(module, _layout(module)).params)


@pytest.mark.parametrize("settings", ADAMS)
def test_adam_on_the_flat_vector_equals_torch_per_tensor(settings: Adam) -> None:
    module, factors = _net(), [0.2, 1.0, 1.0, 1.0, 0.5]
    server = _server(module, settings)
    _server_steps(server, factors)
    plain = (torch.optim.AdamW if isinstance(settings, AdamW) else torch.optim.Adam)(
        module.parameters(),
        lr=settings.lr, betas=(settings.beta1, settings.beta2), eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )  # fmt: skip
    _plain_steps(module, plain, [settings.lr * factor for factor in factors])
    assert torch.equal(server.state.params, ModelState.of_module(module, _layout(module)).params)


def test_an_optimizer_by_name_on_the_flat_vector_equals_torch_per_tensor() -> None:
    module, factors = _net(), [0.2, 1.0, 1.0, 1.0, 0.5]
    server = _server(module, NAMED[0])
    _server_steps(server, factors)
    plain = torch.optim.RMSprop(module.parameters(), lr=0.01, momentum=0.9, centered=True)
    _plain_steps(module, plain, [0.01 * factor for factor in factors])
    assert torch.equal(server.state.params, ModelState.of_module(module, _layout(module)).params)


@pytest.mark.parametrize("settings", [*SGDS, *ADAMS, *NAMED])
def test_a_version_does_not_change_when_the_next_is_created(settings: Optimizer) -> None:
    """Late devices still pull it."""
    module = _net()
    server = _server(module, settings)
    versions: list[tuple[ModelState, Tensor]] = []
    for round in range(3):
        versions.append((server.state, server.state.params.clone()))
        _server_steps(server, [1.0], first=round)
    assert all(torch.equal(state.params, saved) for state, saved in versions)
    assert torch.equal(ModelState.of_module(module, _layout(module)).params, versions[0][1]), (
        "the user's module is left alone"
    )


@pytest.mark.parametrize("settings", [*SGDS, *ADAMS, *NAMED])
def test_a_restored_server_continues_as_if_never_stopped(settings: Optimizer) -> None:
    module = _net()
    continuous, half = _server(module, settings), _server(module, settings)
    _server_steps(continuous, [1.0] * 5)
    _server_steps(half, [1.0] * 2)
    saved = copy.deepcopy(half.tensors())
    restored = _server(_net(), settings)
    restored.restore(saved)
    _server_steps(restored, [1.0] * 3, first=2)
    assert torch.equal(restored.state.params, continuous.state.params)


@pytest.mark.parametrize("settings", [SGDS[1], ADAMS[0]])
def test_a_saved_state_does_not_change_afterwards(settings: Optimizer) -> None:
    server = _server(_net(), settings)
    _server_steps(server, [1.0] * 2)
    params = server.tensors()["params"]
    saved = params.clone()
    _server_steps(server, [1.0], first=2)
    assert torch.equal(params, saved)


def test_a_server_can_be_restored_before_its_first_step() -> None:
    server, restored = _server(_net(), Adam()), _server(_net(), Adam())
    restored.restore(server.tensors())
    for one in (server, restored):
        _server_steps(one, [1.0] * 2)
    assert torch.equal(server.state.params, restored.state.params)


SCHEDULES: st.SearchStrategy[LearningRateSchedule] = st.one_of(
    st.builds(ConstantSchedule, warmup=st.integers(0, 9)),
    st.builds(
        StepSchedule,
        warmup=st.integers(0, 9),
        at=st.lists(st.integers(0, 50), max_size=4).map(tuple),
        by=st.floats(0.01, 1),
    ),
    st.builds(CosineSchedule, warmup=st.integers(0, 9), rounds=st.integers(1, 50), floor=st.floats(0, 1)),
)


@settings(deadline=None)
@given(schedule=SCHEDULES, round=st.integers(0, 100))
def test_schedule_factors_lie_between_zero_and_one(schedule: LearningRateSchedule, round: int) -> None:
    assert 0.0 <= schedule.lr_factor(round) <= 1.0 + 1e-12
    if round < schedule.warmup:
        assert schedule.lr_factor(round) > 0


def test_a_warm_up_rises_to_one() -> None:
    assert [ConstantSchedule(warmup=4).lr_factor(round) for round in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_step_schedule_drops_at_the_given_rounds() -> None:
    factors = [StepSchedule(at=(2, 4), by=0.5).lr_factor(round) for round in range(6)]
    assert factors == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_a_cosine_goes_down_to_its_floor_and_stays_there() -> None:
    cosine = CosineSchedule(rounds=10, floor=0.2)
    assert cosine.lr_factor(0) == 1.0
    assert cosine.lr_factor(5) == pytest.approx(0.6)
    assert cosine.lr_factor(10) == cosine.lr_factor(99) == pytest.approx(0.2)
    assert cosine.lr_factor(1) == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 10)))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"kind": "sgd", "lr": 0}, "> 0"),
        ({"kind": "sgd", "momentum": 1}, "< 1"),
        ({"kind": "sgd", "nesterov": True}, "needs a `momentum`"),
        ({"kind": "adam", "beta1": 1.0}, "< 1"),
        ({"kind": "adam", "epsilon": 0}, "> 0"),
        ({"kind": "adam", "weight_decay": -1}, ">= 0"),
    ],
)
def test_invalid_optimizer_settings_are_refused(raw: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        decode_settings(raw, Optimizer)


@pytest.mark.parametrize("optimizer", [Sgd(lr=0.1, momentum=0.9), Adam(lr=0.01), AdamW(lr=0.01, weight_decay=0)])
def test_with_a_constant_gradient_the_predicted_step_is_the_next_step(optimizer: Optimizer) -> None:
    built, gradient = optimizer.build_optimizer(torch.zeros(3)), torch.tensor([1.0, -2.0, 0.5])
    (param,) = built.param_groups[0]["params"]
    for _ in range(200):
        param.grad = gradient.clone()
        built.step()
    before, heading = param.detach().clone(), optimizer.predicted_step(built.state[param])
    param.grad = gradient.clone()
    built.step()
    assert heading is not None
    torch.testing.assert_close(before - heading, param.detach(), rtol=1e-4, atol=1e-6)


def test_plain_sgd_predicts_no_step() -> None:
    assert Sgd(lr=0.1).predicted_step({}) is None
    assert Adam().predicted_step({"step": torch.zeros(())}) is None
    assert NAMED[0].predicted_step({}) is None

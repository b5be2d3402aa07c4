"""Every solver equals a plain PyTorch loop with the same optimizer over module.parameters(), bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.model.carried_state import CarriedState
from potluck.model.local_training import (
    GradientTraining,
    LocalAdam,
    LocalAdamW,
    LocalOptimizer,
    LocalSgd,
    LocalSteps,
    LocalTraining,
    Proximal,
)
from potluck.model.model_replica import ModelReplica
from potluck.model.model_state import ModelState, WeightLayout

Batch = tuple[Tensor, Tensor]
Build = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


def _named(name: str, lr: float = 0.01, **options: Any) -> LocalOptimizer:
    return LocalOptimizer(name=f"torch.optim.{name}", lr=lr, options=options)


OPTIMIZERS: dict[str, tuple[LocalSteps, Build]] = {
    "adam": (LocalAdam(lr=0.01), lambda params: torch.optim.Adam(params, lr=0.01)),
    "adam-decay": (
        LocalAdam(lr=0.01, beta1=0.8, beta2=0.9, epsilon=1e-3, weight_decay=0.1),
        lambda params: torch.optim.Adam(params, lr=0.01, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1),
    ),
    "adamw": (LocalAdamW(lr=0.01), lambda params: torch.optim.AdamW(params, lr=0.01)),
    "nesterov": (
        LocalSgd(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, state="keep"),
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "momentum": (
        LocalSgd(lr=0.1, momentum=0.9, state="keep"),
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    ),
    "rmsprop": (
        _named("RMSprop", momentum=0.9, centered=True),
        lambda params: torch.optim.RMSprop(params, lr=0.01, momentum=0.9, centered=True),
    ),
    "rprop": (_named("Rprop"), lambda params: torch.optim.Rprop(params, lr=0.01)),
    "nadam": (_named("NAdam"), lambda params: torch.optim.NAdam(params, lr=0.01)),
    "adafactor": (_named("Adafactor"), lambda params: torch.optim.Adafactor(params, lr=0.01)),
    "clipped": (LocalAdamW(lr=0.01, clip_norm=0.1), lambda params: torch.optim.AdamW(params, lr=0.01)),
}


pytestmark = pytest.mark.usefixtures("one_thread")


def _net(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Sizes not divisible by vector widths, so that every loop tail runs."""
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 11, bias=False), nn.Linear(11, 3)).to(dtype)


def _layout(module: nn.Module) -> WeightLayout:
    """A layer for each module with parameters."""
    names = [[name for name, _ in module.named_parameters() if name.startswith(f"{index}.")] for index in range(4)]
    return WeightLayout.of_module(module, [(owned, []) for owned in names])


def _replica(module: nn.Module) -> ModelReplica:
    return ModelReplica(module, _layout(module), F.cross_entropy)


def _batches(count: int, size: int = 10, dtype: torch.dtype = torch.float32) -> list[Batch]:
    generator = torch.Generator().manual_seed(2)
    return [
        (torch.randn(size, 7, generator=generator, dtype=dtype), torch.randint(0, 3, (size,), generator=generator))
        for _ in range(count)
    ]


def _plain_loop(build: Build, batches: list[Batch], clip_norm: float | None = None) -> Tensor:
    module = copy.deepcopy(_net())
    optimizer = build(list(module.parameters()))
    for inputs, targets in batches:
        optimizer.zero_grad()
        F.cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        optimizer.step()
    return ModelState.of_module(module, _layout(module)).params


def _train(local: LocalTraining, replica: ModelReplica, batches: list[Batch], state: Any = None) -> Any:
    """One turn; returns the state after it."""
    solver = local.new_solver(replica, 1.0)
    if state is not None:
        solver.load_state(state)
    solver.start()
    for inputs, targets in batches:
        solver.step(replica.gradient(inputs, targets)[0], 1 / len(batches))
    solver.finish()
    return solver.save_state()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_turns_with_kept_state_equal_a_plain_loop(name: str) -> None:
    local, build = OPTIMIZERS[name]
    batches, first, second = _batches(7), _replica(_net()), _replica(_net())
    state = _train(local, first, batches[:3])
    second.state.params.copy_(first.state.params)
    saved = {name: tensor.clone() for name, tensor in state.items()}
    _train(local, second, batches[3:], state)
    assert torch.equal(second.state.params, _plain_loop(build, batches, local.clip_norm))
    assert all(torch.equal(tensor, saved[name]) for name, tensor in state.items()), (
        "a turn changed the state it began with"
    )


def test_plain_numbers_of_a_state_survive_a_checkpoint() -> None:
    local = LocalOptimizer(name="tests.model.test_torch_optimizers:JointNorm", lr=0.1)
    assert local.traits.has_numbers
    batches, first, second, whole = _batches(4), _replica(_net()), _replica(_net()), _replica(_net())
    _train(local, whole, batches)
    saved = CarriedState(optimizer=_train(local, first, batches[:2])).to_tensors()
    second.state.params.copy_(first.state.params)
    state = _train(local, second, batches[2:], CarriedState.from_tensors(saved).optimizer)
    assert torch.equal(second.state.params, whole.state.params)
    assert {int(value) for value in state.values()} == {4}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"clipped"}))
def test_a_last_step_taken_layer_by_layer_is_the_same_step(name: str) -> None:
    local, _ = OPTIMIZERS[name]
    batches, whole, layered = _batches(3), _replica(_net()), _replica(_net())
    states = []
    for replica in (whole, layered):
        solver = local.new_solver(replica, 1.0)
        solver.start()
        for index, (inputs, targets) in enumerate(batches):
            gradient, _ = replica.gradient(inputs, targets)
            if replica is whole or index < 2:
                solver.step(gradient, 1 / 3)
                continue
            for layer in reversed(range(4)):
                entries, _ = replica.layout.layer_slices(layer, layer)
                solver.step(gradient, 1 / 3, entries)
        states.append(solver.save_state())
    assert torch.equal(whole.state.params, layered.state.params)
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("name", ["adamw", "momentum"])
def test_a_first_step_may_be_taken_layer_by_layer(name: str) -> None:
    local, build = OPTIMIZERS[name]
    (batch,), replica = _batches(1), _replica(_net())
    solver = local.new_solver(replica, 1.0)
    solver.start()
    gradient, _ = replica.gradient(*batch)
    for layer in reversed(range(4)):
        solver.step(gradient, 1.0, replica.layout.layer_slices(layer, layer)[0])
    assert torch.equal(replica.state.params, _plain_loop(build, [batch]))


class _Gathered:
    """Some entries of a replica's vectors, as an extracted sub-model has them."""

    def __init__(self, replica: ModelReplica, indices: Tensor) -> None:
        self._indices = indices
        self._whole = replica
        self.replica: Any = type("Narrow", (), {})()
        self.replica.state = ModelState(self.gather(replica.state.params), replica.state.buffers)

    def gather(self, vector: Tensor) -> Tensor:
        return vector[self._indices]

    def scatter(self, small: Tensor, vector: Tensor) -> None:
        vector[self._indices] = small

    def close(self) -> None:
        self.scatter(self.replica.state.params, self._whole.state.params)


@pytest.mark.parametrize("name", ["adam", "adamw", "nesterov", "rmsprop"])
def test_a_sub_model_steps_its_own_entries_and_leaves_the_others(name: str) -> None:
    local, _ = OPTIMIZERS[name]
    whole, narrow = _replica(_net()), _replica(_net())
    size = len(whole.state.params)
    solvers = [local.new_solver(replica, 1.0) for replica in (whole, narrow)]
    before = narrow.state.params.clone()
    kept = torch.arange(0, size, 2)
    for solver in solvers:
        solver.start()
    for inputs, targets in _batches(3):
        gradient, _ = whole.gradient(inputs, targets)
        solvers[0].step(gradient, 1 / 3)
        submodel = _Gathered(narrow, kept)
        solvers[1].step_submodel(submodel, gradient[kept], 1 / 3)
        submodel.close()
    assert torch.equal(narrow.state.params[kept], whole.state.params[kept])
    assert torch.equal(narrow.state.params[1::2], before[1::2])
    for name, value in solvers[1].save_state().items():
        if value.shape == before.shape:
            assert not value[1::2].any(), name


@pytest.mark.parametrize("local", [LocalSgd(lr=0.1), LocalAdamW(lr=0.01)])
@pytest.mark.parametrize("layered", [False, True])
def test_accumulated_mini_batches_equal_a_large_batch(local: LocalSteps, layered: bool) -> None:
    small = _batches(6, size=5, dtype=torch.float64)
    small[4] = (small[4][0][:3], small[4][1][:3])
    grouped = [small[:4], small[4:]]  # the last step has fewer
    large = [tuple(torch.cat(column) for column in zip(*group, strict=True)) for group in grouped]
    expected, replica = _replica(_net(torch.float64)), _replica(_net(torch.float64))
    _train(local, expected, large)  # type: ignore[arg-type]
    samples = sum(len(targets) for _, targets in small)
    solver = msgspec.structs.replace(local, accumulate=4).new_solver(replica, 1.0)
    solver.start()
    for index, (inputs, targets) in enumerate(small):
        gradient, fraction = replica.gradient(inputs, targets)[0], len(targets) / samples
        if layered and index == 5:
            for layer in reversed(range(4)):
                solver.step(gradient, fraction, replica.layout.layer_slices(layer, layer)[0])
        else:
            solver.step(gradient, fraction)
    if not layered:
        solver.finish()
    torch.testing.assert_close(replica.state.params, expected.state.params, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("norm", [0.05, 1e6])
def test_a_clipped_gradient_is_what_torch_clips_it_to(norm: float) -> None:
    module, (batch,) = _net(), _batches(1)
    replica = _replica(module)
    solver = GradientTraining(clip_norm=norm).new_solver(replica, 1.0)
    solver.start()
    solver.step(replica.gradient(*batch)[0], 1.0)
    solver.finish()
    F.cross_entropy(module(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(module.parameters(), norm)
    gradients = [param.grad.reshape(-1) for param in module.parameters() if param.grad is not None]
    assert torch.equal(solver.update(), torch.cat(gradients))


def test_the_proximal_term_is_clipped_with_the_gradient() -> None:
    replica = _replica(_net())
    solver = Proximal(lr=1.0, mu=10.0, clip_norm=0.01).new_solver(replica, 1.0)
    solver.start()
    replica.state.params.add_(1.0)
    before = replica.state.params.clone()
    solver.step(torch.zeros_like(before), 1.0)
    assert float((before - replica.state.params).norm()) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_autocast_equals_torchs_and_leaves_weights_and_gradients_in_float32(precision: Any) -> None:
    local = LocalAdamW(lr=0.01, precision=precision)
    batches, replica, plain = _batches(3), _replica(_net()), _net()
    replica.autocast = local.autocast_dtype
    _train(local, replica, batches)
    optimizer, scale = torch.optim.AdamW(plain.parameters(), lr=0.01), 2.0**16 if precision == "float16" else 1.0
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", local.autocast_dtype):
            loss = F.cross_entropy(plain(inputs), targets)
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        for param in plain.parameters():
            assert param.grad is not None
            param.grad.div_(scale)
        optimizer.step()
    expected = ModelState.of_module(plain, replica.layout).params
    assert replica.state.params.dtype == torch.float32
    assert torch.equal(replica.state.params, expected)
    full = _replica(_net())
    _train(LocalAdamW(lr=0.01), full, batches)
    assert not torch.equal(full.state.params, expected)


def test_a_gradient_that_overflows_in_float16_is_computed_at_a_smaller_scale() -> None:
    module = _net()
    replica = ModelReplica(module, _layout(module), lambda outputs, targets: 100 * F.cross_entropy(outputs, targets))
    (batch,) = _batches(1)
    full = replica.gradient(*batch)[0].clone()
    replica.autocast = torch.float16
    torch.testing.assert_close(replica.gradient(*batch)[0], full, rtol=0.05, atol=0.05)

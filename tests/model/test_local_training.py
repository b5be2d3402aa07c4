from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.model.local_training import GradientTraining, LocalSgd, LocalTraining, Proximal
from potluck.model.model_replica import ModelReplica
from potluck.model.model_state import ModelState, WeightLayout


class Trained(NamedTuple):
    """The result of a device's training."""

    params: Tensor
    buffers: Tensor
    samples: int
    loss: float


def train(
    local: LocalTraining,
    replica: ModelReplica,
    batches: list[tuple[Tensor, Tensor]],
    draws: np.random.Generator | None = None,
    lr: float = 1.0,
) -> Trained:
    """Train on the mini-batches as a device does."""
    before, solver = replica.copy_buffers(), local.new_solver(replica, lr)
    solver.start()
    samples, loss = sum(len(targets) for _, targets in batches), 0.0
    for inputs, targets in batches:
        gradient, now = replica.gradient(inputs, targets, draws)
        solver.step(gradient, len(targets) / samples)
        loss += now * len(targets) / samples
    return Trained(solver.update().clone(), replica.buffer_change(before), samples, loss)


def _net(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Sizes not divisible by vector widths, so that every loop tail runs."""
    torch.manual_seed(11)
    net = nn.Sequential(nn.Linear(7, 13), nn.BatchNorm1d(13), nn.ReLU(), nn.Linear(13, 11), nn.Tanh(), nn.Linear(11, 3))
    return net.to(dtype)


def _layout(module: nn.Module) -> WeightLayout:
    params, buffers = [[*dict(named)] for named in (module.named_parameters(), module.named_buffers())]
    return WeightLayout.of_module(module, [(params, buffers)])


def _batches(count: int, size: int = 10, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [
        (torch.randn(size, 7, generator=generator, dtype=dtype), torch.randint(0, 3, (size,), generator=generator))
        for _ in range(count)
    ]


def _plain(module: nn.Module, batches: list[tuple[Tensor, Tensor]], lr: float, **options: float) -> nn.Module:
    """The plain PyTorch training loop."""
    module = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, **options)  # type: ignore[arg-type]
    module.train()
    for inputs, targets in batches:
        optimizer.zero_grad()
        F.cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return module


def _trained(local: LocalSgd, module: nn.Module, batches: list[tuple[Tensor, Tensor]], lr: float = 1.0) -> ModelReplica:
    replica = ModelReplica(module, _layout(module), F.cross_entropy)
    train(local, replica, batches, None, lr)
    return replica


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_local_sgd_equals_torch_sgd_exactly(momentum: float, weight_decay: float, dtype: torch.dtype) -> None:
    module, batches = _net(dtype), _batches(7, dtype=dtype)
    replica = _trained(LocalSgd(lr=0.1, momentum=momentum, weight_decay=weight_decay), module, batches)
    plain = _plain(module, batches, 0.1, momentum=momentum, weight_decay=weight_decay)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(replica.module.state_dict()[name], tensor), name


def test_a_schedule_scales_the_learning_rate() -> None:
    module, batches = _net(), _batches(4)
    replica = _trained(LocalSgd(lr=0.1, momentum=0.9), module, batches, lr=0.25)
    plain = _plain(module, batches, 0.1 * 0.25, momentum=0.9)
    assert torch.equal(replica.state.params, ModelState.of_module(plain, _layout(plain)).params)


def _difference(module: nn.Module, batches: list[tuple[Tensor, Tensor]], local: LocalSgd | GradientTraining) -> Trained:
    return train(local, ModelReplica(module, _layout(module), F.cross_entropy), batches)


def test_the_update_is_the_difference_between_trained_and_pulled_model() -> None:
    module, batches = _net(), _batches(5)
    update = _difference(module, batches, LocalSgd(lr=0.1))
    layout = _layout(module)
    before, after = ModelState.of_module(module, layout), ModelState.of_module(_plain(module, batches, 0.1), layout)
    assert torch.equal(update.params, before.params - after.params)
    assert torch.equal(update.buffers, after.buffers - before.buffers)
    assert update.samples == 50


def test_the_loss_is_the_mean_over_all_samples() -> None:
    module = _net()
    batches = [*_batches(2, size=9), *_batches(1, size=3)]
    update = _difference(module, batches, LocalSgd(lr=1e-30))
    replica = ModelReplica(module, _layout(module), F.cross_entropy)
    expected = sum(replica.gradient(*batch)[1] * len(batch[1]) for batch in batches) / 21
    assert update.loss == pytest.approx(expected, rel=1e-6)


def test_one_gradient_equals_the_torch_gradient() -> None:
    module, (batch,) = _net(), _batches(1)
    update = _difference(module, [batch], GradientTraining())
    plain = copy.deepcopy(module)
    loss = F.cross_entropy(plain(batch[0]), batch[1])
    loss.backward()  # type: ignore[no-untyped-call]
    grads = [param.grad for param in plain.parameters()]
    assert torch.equal(update.params, torch.cat([grad.reshape(-1) for grad in grads if grad is not None]))
    assert (update.samples, update.loss) == (10, float(loss.detach()))
    layout = _layout(module)
    assert torch.equal(
        update.buffers, ModelState.of_module(plain, layout).buffers - ModelState.of_module(module, layout).buffers
    )


def test_gradients_of_several_batches_add_up_to_that_of_one_large_batch() -> None:
    module = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 3)).double()
    batches = [*_batches(2, size=10, dtype=torch.float64), *_batches(1, size=4, dtype=torch.float64)]
    large = [(torch.cat([inputs for inputs, _ in batches]), torch.cat([targets for _, targets in batches]))]
    summed, one = _difference(module, batches, GradientTraining()), _difference(module, large, GradientTraining())
    assert summed.samples == one.samples == 24
    assert torch.allclose(summed.params, one.params, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("local", "per_epoch", "passes"),
    [
        (LocalSgd(), 4, 4),
        (LocalSgd(epochs=3), 3, 9),
        (LocalSgd(epochs=3), 1, 3),
        (LocalSgd(steps=7), 1, 7),
        (LocalSgd(steps=2, epochs=9), 100, 2),
    ],
)
def test_number_of_batches_per_turn(local: LocalSgd, per_epoch: int, passes: int) -> None:
    assert local.batches_per_turn(per_epoch) == passes


def test_a_zero_proximal_term_changes_nothing() -> None:
    module, batches = _net(), _batches(6)
    plain = _trained(LocalSgd(lr=0.1, momentum=0.9), module, batches)
    proximal = _trained(Proximal(lr=0.1, momentum=0.9, mu=0.0), module, batches)
    assert torch.equal(plain.state.params, proximal.state.params)


def test_the_proximal_term_is_the_gradient_of_half_mu_times_the_squared_distance() -> None:
    module, batches = _net(torch.float64), _batches(6, dtype=torch.float64)
    replica = _trained(Proximal(lr=0.1, mu=0.7), module, batches)
    plain = copy.deepcopy(module)
    anchor = [param.detach().clone() for param in plain.parameters()]
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for inputs, targets in batches:
        optimizer.zero_grad()
        squares = [((w - w0) ** 2).sum() for w, w0 in zip(plain.parameters(), anchor, strict=True)]
        loss = F.cross_entropy(plain(inputs), targets) + 0.35 * torch.stack(squares).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    torch.testing.assert_close(
        replica.state.params, ModelState.of_module(plain, _layout(plain)).params, rtol=1e-12, atol=1e-14
    )


def test_a_strong_proximal_term_keeps_the_model_close() -> None:
    module, batches = _net(), _batches(30)
    far, near = (_difference(module, batches, Proximal(lr=0.1, mu=mu)).params.norm() for mu in (0.0, 5.0))
    assert near < 0.5 * far


@pytest.mark.parametrize("local", [LocalSgd(lr=0.1, momentum=0.9), LocalSgd(lr=0.1)])
def test_a_replica_can_be_used_again(local: LocalSgd) -> None:
    """No state of one device's training leaks into the next use of the replica."""
    module, batches = _net(), _batches(4)
    state = ModelState.of_module(module, _layout(module))
    replica = ModelReplica(module, _layout(module), F.cross_entropy)
    updates = []
    for _ in range(2):
        replica.load_layers(0, 0, state.params, state.buffers)
        replica.sync_counters()
        updates.append(train(local, replica, batches))
    assert torch.equal(updates[0].params, updates[1].params)
    assert torch.equal(updates[0].buffers, updates[1].buffers)


def test_an_averaged_counter_advances_by_the_steps_taken() -> None:
    """Two devices with 1 and 2 batches leave the counter at 1.5; the next batch is one more, not one and a half."""
    module, batches = _net(), _batches(1)
    replica = ModelReplica(module, _layout(module), F.cross_entropy)
    counter = next(entry for entry in replica.layout.buffers if entry.name.endswith("num_batches_tracked"))
    buffers = ModelState.of_module(module, replica.layout).buffers
    buffers[counter.start] = 1.5
    replica.load_layers(0, 0, ModelState.of_module(module, replica.layout).params, buffers)
    replica.sync_counters()
    assert float(train(LocalSgd(), replica, batches).buffers[counter.start]) == 1.0


def test_random_draws_of_the_model_are_seeded_per_device() -> None:
    module = nn.Sequential(nn.Linear(7, 40), nn.Dropout(0.5), nn.Linear(40, 3))
    draws = [
        train(
            LocalSgd(), ModelReplica(module, _layout(module), F.cross_entropy), _batches(3), np.random.default_rng(seed)
        )
        for seed in (1, 1, 2)
    ]
    assert torch.equal(draws[0].params, draws[1].params)
    assert not torch.equal(draws[0].params, draws[2].params)

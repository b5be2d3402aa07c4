from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.errors import ModelError
from potluck.model.model_replica import ModelReplica, SeededRandomMode
from potluck.model.model_state import ModelState, WeightLayout


class _Net(nn.Module):
    """A norm with a counter, a frozen weight, a weight that is never used, and dropout."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.first = nn.Linear(6, 9)
        self.norm = nn.BatchNorm1d(9)
        self.drop = nn.Dropout(dropout)
        self.last = nn.Linear(9, 3)
        self.unused = nn.Linear(2, 2)
        self.first.bias.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(inputs)))))  # type: ignore[no-any-return]


def _layout(module: nn.Module) -> WeightLayout:
    params, buffers = [[*dict(tensors)] for tensors in (module.named_parameters(), module.named_buffers())]
    return WeightLayout.of_module(module, [(params, buffers)])


def _replica(module: nn.Module | None = None) -> ModelReplica:
    torch.manual_seed(5)
    module = module if module is not None else _Net()
    return ModelReplica(module, _layout(module), F.cross_entropy)


def _batch(seed: int = 0, size: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)


def test_the_original_model_is_not_changed() -> None:
    module = _Net()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    replica = _replica(module)
    replica.state.params.zero_()
    replica.gradient(*_batch())
    assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in before.items())


def test_the_gradient_is_that_of_the_plain_model() -> None:
    module = _Net(dropout=0.0)
    replica = _replica(module)
    gradient, loss = replica.gradient(*_batch())
    plain = F.cross_entropy(module(_batch()[0]), _batch()[1])
    plain.backward()  # type: ignore[no-untyped-call]
    assert loss == float(plain.detach())
    tensors = ModelState(gradient, torch.zeros(0)).named_tensors(
        WeightLayout(replica.layout.params, (), (0, 0), (0, 0), torch.float32)
    )
    for name, param in module.named_parameters():
        if param.requires_grad:
            expected = torch.zeros_like(param) if param.grad is None else param.grad
            assert torch.equal(tensors[name], expected), name


def test_gradients_do_not_accumulate() -> None:
    replica = _replica(_Net(dropout=0.0))
    first = replica.gradient(*_batch())[0].clone()
    other = replica.gradient(*_batch(1))[0].clone()
    assert not torch.equal(other, first)
    assert torch.equal(replica.gradient(*_batch())[0], first)


def test_loaded_weights_are_used() -> None:
    one, other = _replica(), _replica()
    one.state.params.normal_()
    one.state.buffers.uniform_(1, 2)
    other.load_layers(0, 0, one.state.params, one.state.buffers)
    other.sync_counters()
    one.sync_counters()
    (out,) = [output for output, _ in one.outputs([_batch()])]
    (same,) = [output for output, _ in other.outputs([_batch()])]
    assert torch.equal(out, same)


def test_counters_round_trip() -> None:
    replica = _replica()
    counter = replica.module.get_buffer("norm.num_batches_tracked")
    buffer_entry = next(entry for entry in replica.layout.buffers if entry.name == "norm.num_batches_tracked")
    replica.state.buffers[buffer_entry.start] = 41.0
    replica.sync_counters()
    replica.gradient(*_batch())
    assert int(counter) == 42
    assert float(replica.copy_buffers()[buffer_entry.start]) == 42.0
    assert counter.dtype == torch.int64


class _WithBuffer(nn.Module):
    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.line = nn.Linear(6, 3)
        self.register_buffer("kept", tensor)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.line(inputs)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([0.25, -1.5]),
        torch.tensor([True, False]),
        torch.tensor([3, 100_000], dtype=torch.int32),
        torch.tensor([2**24, -(2**24)]),
        torch.tensor([0.25, 0.75], dtype=torch.float64),
        torch.tensor([0.25, 0.75], dtype=torch.float16),
    ],
    ids=str,
)
def test_a_buffer_of_any_dtype_survives_a_round(tensor: Tensor) -> None:
    module = _WithBuffer(tensor.clone())
    replica = _replica(module)
    state = ModelState.of_module(module, replica.layout)
    replica.load_layers(0, 0, state.params, state.buffers)
    replica.sync_counters()
    assert torch.equal(replica.module.kept, tensor)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [[2**24 + 1], [0, -(2**24) - 1]])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_an_integer_that_float_cannot_represent_is_refused(values: list[int], dtype: torch.dtype) -> None:
    module = _WithBuffer(torch.tensor(values, dtype=dtype))
    with pytest.raises(ModelError, match=r"buffer 'kept' has integers that the parameters'"):
        ModelState.of_module(module, _layout(module))
    with pytest.raises(ModelError, match=r"buffer 'kept' has integers that the parameters'"):
        _replica(module)


def test_evaluation_changes_nothing() -> None:
    replica = _replica()
    before = replica.copy_buffers()
    first = [output for output, _ in replica.outputs([_batch(), _batch(1)])]
    second = [output for output, _ in replica.outputs([_batch(), _batch(1)])]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(replica.copy_buffers(), before)
    assert not first[0].requires_grad


# --- random numbers drawn by the model -------------------------------------------------------------------------------


def _drawn(seed: int, operation: Callable[[], Tensor]) -> Tensor:
    with SeededRandomMode(seed):
        return operation()


OPERATIONS = [
    pytest.param(lambda: F.dropout(torch.ones(50)), id="dropout"),
    pytest.param(lambda: F.dropout2d(torch.ones(5, 9, 2, 2)), id="dropout2d"),
    pytest.param(lambda: F.alpha_dropout(torch.ones(50), training=True), id="alpha dropout"),
    pytest.param(lambda: torch.bernoulli(torch.full((50,), 0.5)), id="bernoulli"),
    pytest.param(lambda: torch.multinomial(torch.ones(50), 9), id="multinomial"),
    pytest.param(lambda: torch.normal(torch.zeros(9), torch.ones(9)), id="normal"),
    pytest.param(lambda: F.gumbel_softmax(torch.zeros(9)), id="gumbel softmax"),
    pytest.param(lambda: F.rrelu(torch.full((9,), -1.0), training=True), id="rrelu"),
    pytest.param(lambda: torch.empty(9).uniform_(), id="uniform_"),
    pytest.param(lambda: torch.rand(9), id="rand"),
    pytest.param(lambda: torch.randn(9), id="randn"),
    pytest.param(lambda: torch.randn_like(torch.zeros(9)), id="randn_like"),
    pytest.param(lambda: torch.rand_like(torch.zeros(9)), id="rand_like"),
    pytest.param(lambda: torch.randint(0, 99, (9,)), id="randint"),
    pytest.param(lambda: torch.randperm(9), id="randperm"),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_draws_depend_on_the_seed_alone(operation: Callable[[], Tensor]) -> None:
    torch.manual_seed(1)
    first = _drawn(7, operation)
    torch.manual_seed(2)
    assert torch.equal(_drawn(7, operation), first)
    assert not torch.equal(_drawn(8, operation), first)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_models_that_draw_random_numbers_are_detected(operation: Callable[[], Tensor]) -> None:
    with SeededRandomMode(0) as draws:
        operation()
    assert draws.used_random


def test_models_without_random_numbers_are_detected() -> None:
    line = nn.Linear(3, 3)
    with SeededRandomMode(0) as draws:
        F.dropout(line(torch.ones(2, 3)), training=False).sum().backward()  # type: ignore[no-untyped-call]
    assert not draws.used_random


@pytest.mark.parametrize(("rate", "is_random"), [(0.0, False), (0.5, True)])
def test_attention_is_random_only_if_it_drops_something(rate: float, is_random: bool) -> None:
    """A mode that sees every operation would cost a transformer without dropout a tenth of its time."""
    queries = torch.randn(1, 2, 4, 8, requires_grad=True)
    with SeededRandomMode(0) as draws:
        F.scaled_dot_product_attention(queries, queries, queries, dropout_p=rate, is_causal=True).sum().backward()  # type: ignore[no-untyped-call]
    assert draws.used_random is is_random


def test_the_global_torch_generator_is_not_used() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    _drawn(0, lambda: F.dropout(torch.ones(9)))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_explicit_generator_is_kept() -> None:
    first, second = (
        _drawn(seed, lambda: torch.empty(9).uniform_(generator=torch.Generator().manual_seed(4))) for seed in (0, 1)
    )
    assert torch.equal(first, second)


def _with_draws(replica: ModelReplica, seed: int) -> Tensor:
    return replica.gradient(*_batch(), np.random.default_rng(seed))[0].clone()


def test_dropout_does_not_depend_on_other_threads() -> None:
    """The replica's gradient alone, then while other threads keep drawing random numbers."""
    replica = _replica()
    single = [_with_draws(replica, n) for n in range(20)]
    busy = threading.Event()

    def disturb() -> None:
        noisy = _replica()
        while not busy.is_set():
            torch.rand(100)
            _with_draws(noisy, 99)

    threads = [threading.Thread(target=disturb) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        concurrent = [_with_draws(replica, n) for n in range(20)]
    finally:
        busy.set()
        for thread in threads:
            thread.join(10)
    assert all(torch.equal(a, b) for a, b in zip(single, concurrent, strict=True))
    assert not torch.equal(single[0], single[1])


@pytest.mark.xfail(strict=True, reason="backward draws outside of Draws, so what is recomputed differs")
def test_recomputation_in_backward_repeats_the_same_draws() -> None:
    from torch.utils.checkpoint import checkpoint

    class Recomputing(_Net):
        def forward(self, inputs: Tensor) -> Tensor:
            return checkpoint(super().forward, inputs, use_reentrant=False)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    plain, recomputing = _Net(), Recomputing()
    recomputing.load_state_dict(plain.state_dict())
    assert torch.equal(_with_draws(_replica(recomputing), 1), _with_draws(_replica(plain), 1))

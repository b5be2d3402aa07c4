"""The stage backend: stages compute what the whole chain computes, and nothing is changed in place."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from potluck.data import Dataset, from_tensors
from potluck.errors import ModelError
from potluck.model import evaluation_score
from potluck.model.indexed_dataset import MicroBatches, PipelineData
from potluck.model.layer_chain import trace_layers
from potluck.model.optimizers import Adam, AdamW, Optimizer, Sgd, TorchOptimizer
from potluck.model.stage_function import StageFunctions
from potluck.model.torch_stages import StageState, TorchStages

BATCH = 6


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True),
        nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(48, 4), nn.Linear(4, 3),
    )  # fmt: skip


def data() -> Dataset:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(24, 1, 4, 4, generator=generator), torch.randint(0, 3, (24,), generator=generator)
    return from_tensors(x, y, x[:8], y[:8], name="small", classes=("a", "b", "c"))


def stages_of(module: nn.Module, optimizer: Optimizer, parts: int = 1) -> TorchStages:
    chain, samples = trace_layers(module, (1, 4, 4)), data()
    sections = StageFunctions(chain, samples.train.x[:2])
    feed = MicroBatches(24, BATCH, parts)
    return TorchStages(sections, nn.functional.cross_entropy, optimizer, PipelineData(samples.train, feed), 0)


def cut(stages: TorchStages, whole: StageState, after: int) -> tuple[StageState, StageState]:
    last = whole.last
    first = stages.join_layers(0, after, [(0, after, stages.pack_layers(whole, 0, after))])
    back = stages.join_layers(after + 1, last, [(after + 1, last, stages.pack_layers(whole, after + 1, last))])
    return first, back


def train(stages: TorchStages, first: StageState, back: StageState, part: int) -> tuple[StageState, StageState, Any]:
    forward_pass = stages.forward(first, first.buffers, part, stages.load_inputs(part), None)
    assert forward_pass.payload is not None
    turned = stages.forward(back, back.buffers, part, forward_pass.payload, stages.load_labels(part))
    first_gradient, onward = stages.backward(turned, None)
    ahead, _ = stages.backward(forward_pass, onward)
    return (
        stages.step(first, ahead, forward_pass.buffers, 1.0),
        stages.step(back, first_gradient, turned.buffers, 1.0),
        turned.loss_now,
    )


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    "optimizer",
    [
        Sgd(lr=0.1, momentum=0.9, weight_decay=1e-3),
        Sgd(lr=0.1),
        Adam(lr=0.01),
        AdamW(lr=0.01, weight_decay=0.1),
        TorchOptimizer(name="torch.optim.RMSprop", lr=0.01, options={"momentum": 0.9}),
    ],
)
@pytest.mark.parametrize("after", [0, 1, 2])
def test_any_cut_trains_the_same_model(optimizer: Optimizer, after: int) -> None:
    """Without dropout, because what a stage draws depends on its first layer."""
    module = net()
    module[7] = nn.Identity()
    stages = stages_of(module, optimizer)
    reference = copy.deepcopy(module).train()
    torch_optimizer = optimizer.build_optimizer(torch.zeros(1))
    options = {name: value for name, value in torch_optimizer.defaults.items() if name != "decoupled_weight_decay"}
    theirs = type(torch_optimizer)(reference.parameters(), **options)
    first, back = cut(stages, stages.initial_weights(), after)
    for part in range(5):
        first, back, loss = train(stages, first, back, part)
        inputs, targets = data().train.batch(MicroBatches(24, BATCH).sample_indices(part))
        theirs.zero_grad()
        expected = nn.functional.cross_entropy(reference(inputs), targets)
        expected.backward()  # type: ignore[no-untyped-call]
        theirs.step()
        assert loss == float(expected.detach())
    packed = [(0, after, stages.pack_layers(first, 0, after)), (after + 1, 3, stages.pack_layers(back, after + 1, 3))]
    trained = stages.load_module(stages.join_layers(0, 3, packed))
    for name, tensor in reference.state_dict().items():
        assert torch.equal(tensor, trained.state_dict()[name]), name


def test_weight_versions_are_immutable() -> None:
    stages = stages_of(net(), Sgd(lr=0.1, momentum=0.9))
    first, back = cut(stages, stages.initial_weights(), 1)
    before = [tensor.clone() for tensor in (first.params, first.buffers, *first.moments.values())]
    for part in range(3):
        train(stages, first, back, part)
    after = [first.params, first.buffers, *first.moments.values()]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_random_draws_depend_on_the_micro_batch_only() -> None:
    stages = stages_of(net(), Sgd(lr=0.1))
    whole = stages.initial_weights()

    def loss(part: int) -> float | None:
        return stages.forward(whole, whole.buffers, part, stages.load_inputs(0), stages.load_labels(0)).loss_now

    assert loss(1) == loss(1)
    assert loss(1) != loss(2)


def test_a_transferred_step_gives_the_same_version() -> None:
    stages = stages_of(net(), Sgd(lr=0.1, momentum=0.9))
    whole = stages.initial_weights()
    forward_pass = stages.forward(whole, whole.buffers, 0, stages.load_inputs(0), stages.load_labels(0))
    gradient, _ = stages.backward(forward_pass, None)
    stepped = stages.step(whole, gradient, forward_pass.buffers, 0.5)
    redone = stages.apply_step(whole, stages.pack_step(gradient, forward_pass.buffers), 0.5)
    assert torch.equal(stepped.params, redone.params)
    assert torch.equal(stepped.buffers, redone.buffers)
    assert torch.equal(stepped.moments["momentum_buffer"], redone.moments["momentum_buffer"])
    assert stages.pack_step(gradient, forward_pass.buffers).nbytes < stages.pack_layers(stepped, 0, 3).nbytes


def test_moments_that_are_not_transferred_start_at_zero() -> None:
    stages = stages_of(net(), Adam(lr=0.1))
    whole = stages.initial_weights()
    forward_pass = stages.forward(whole, whole.buffers, 0, stages.load_inputs(0), stages.load_labels(0))
    stepped = stages.step(whole, stages.backward(forward_pass, None)[0], forward_pass.buffers, 1.0)
    assert stages.moments == {"exp_avg": True, "exp_avg_sq": True, "step": False}
    without_moments = stages.join_layers(0, 3, [(0, 3, stages.pack_layers(stepped, 0, 3, moments=False))])
    assert torch.equal(without_moments.params, stepped.params)
    assert not without_moments.moments["exp_avg"].any()
    saved = stages.restore(stages.tensors(stepped))
    assert torch.equal(saved.moments["exp_avg_sq"], stepped.moments["exp_avg_sq"])
    assert float(saved.moments["step"]) == 1


def test_micro_batches_sum_to_their_batch() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 3))
    whole, parts = stages_of(module, Sgd(lr=0.1)), stages_of(module, Sgd(lr=0.1), parts=4)
    start = whole.initial_weights()
    expected, _ = whole.backward(
        whole.forward(start, start.buffers, 0, whole.load_inputs(0), whole.load_labels(0)), None
    )
    total = None
    for part in reversed(range(4)):
        forward_pass = parts.forward(start, start.buffers, part, parts.load_inputs(part), parts.load_labels(part))
        total = parts.accumulate_gradient(total, parts.backward(forward_pass, None)[0], parts.micro_batch_weight(part))
    assert total is not None
    torch.testing.assert_close(total, expected)


def test_the_average_is_of_weights_only() -> None:
    stages = stages_of(net(), Sgd(lr=0.1, momentum=0.9))
    first = stages.initial_weights()
    second = StageState(0, 3, first.params + 2, first.buffers + 1, first.moments)
    mean = stages.average_versions([first, second])
    torch.testing.assert_close(mean.params, first.params + 1)
    assert torch.equal(mean.buffers, second.buffers)


def test_evaluation_equals_that_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_score, "_BATCH", 3)
    module, samples = net(), data()
    stages = stages_of(module, Sgd(lr=0.1))
    score = stages.evaluate_model(stages.initial_weights(), samples.test)
    with torch.no_grad():
        outputs = copy.deepcopy(module).eval()(samples.test.x)
    assert score["loss"] == pytest.approx(float(nn.functional.cross_entropy(outputs, samples.test.y)), rel=1e-5)
    assert score["accuracy"] == pytest.approx(float((outputs.argmax(1) == samples.test.y).float().mean()))


def test_a_model_that_does_not_fit_the_data_is_refused() -> None:
    chain = trace_layers(nn.Sequential(nn.Flatten(), nn.Linear(9, 3)), (3, 3))
    with pytest.raises(ModelError, match="does not fit the data"):
        StageFunctions(chain, torch.zeros(2, 4, 4))


def test_an_epoch_is_every_sample_once() -> None:
    feed = MicroBatches(24, 6, per_batch=3, seed=5)
    indices = [int(index) for part in range(12) for index in feed.sample_indices(part)]
    assert sorted(indices) == list(range(24))
    assert [int(index) for index in feed.sample_indices(12)] != indices[:2]
    assert sum(feed.batch_fraction(part) for part in range(3)) == pytest.approx(1.0)
    assert MicroBatches(4, 100).size == 4


def test_a_stage_says_when_each_layer_begins_and_computes_the_same() -> None:
    module = net()
    stages = stages_of(module, Sgd(lr=0.1))
    whole = stages.initial_weights()
    back = cut(stages, whole, 1)[1]
    first = cut(stages, whole, 1)[0]
    layers = [state.last - state.first + 1 for state in (first, back)]
    calls: list[str] = []

    def begin(name: str) -> Any:
        return lambda: calls.append(name)

    quiet = stages.forward(first, first.buffers, 0, stages.load_inputs(0), None)
    timed = stages.forward(first, first.buffers, 0, stages.load_inputs(0), None, before_layer=begin("forward"))
    assert quiet.payload is not None
    assert timed.payload is not None
    assert all((a == b).all() for a, b in zip(quiet.payload.arrays, timed.payload.arrays, strict=True))
    turned = stages.forward(back, back.buffers, 0, timed.payload, stages.load_labels(0), before_layer=begin("turn"))
    gradient, onward = stages.backward(turned, None, begin("return"))
    assert torch.equal(gradient, stages.backward(copy_of_turn(stages, back, timed), None)[0])
    stages.backward(timed, onward, begin("backward"))
    assert calls == [
        *["forward"] * layers[0], *["turn"] * layers[1], *["return"] * layers[1], *["backward"] * layers[0],
    ]  # fmt: skip


def copy_of_turn(stages: TorchStages, back: StageState, arrived: Any) -> Any:
    return stages.forward(back, back.buffers, 0, arrived.payload, stages.load_labels(0))


def test_a_layer_begins_when_the_one_after_it_has_its_gradients() -> None:
    """A hook that sleeps in one layer's backward delays the calls of the layers before it, not its own."""
    module = net()
    stages = stages_of(module, Sgd(lr=0.1))
    back = cut(stages, stages.initial_weights(), 1)[1]
    first = cut(stages, stages.initial_weights(), 1)[0]
    sent = stages.forward(first, first.buffers, 0, stages.load_inputs(0), None)
    turned = stages.forward(back, back.buffers, 0, sent.payload, stages.load_labels(0))  # type: ignore[arg-type]
    order: list[str] = []
    for leaf, layer in zip(turned.forward_pass.leaves, turned.forward_pass.leaf_layers, strict=True):
        leaf.register_hook(lambda gradient, layer=layer: order.append(f"gradient {layer}"))  # type: ignore[no-untyped-call]
    stages.backward(turned, None, lambda: order.append("begin"))
    last = turned.forward_pass.layer_count - 1
    assert order[0] == "begin"
    assert order.index(f"gradient {last}") < order.index("begin", 1) < order.index(f"gradient {last - 1}")


def test_every_layer_runs_on_its_own_forward_and_backward() -> None:
    module = net()
    stages, before, calls = stages_of(module, Sgd(lr=0.1)), copy.deepcopy(module.state_dict()), []
    stages.run_layers(4, lambda: calls.append(1))
    assert len(calls) == 2 * stages.layout.layer_count
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items()), (
        "nothing is left behind"
    )

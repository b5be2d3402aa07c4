"""Composed stages equal the model exactly in outputs, gradients and state, also over detached tensors."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from potluck.errors import ModelError
from potluck.model import zoo
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.stage_modules import announce_layers, build_stages
from tests.model import styles

# The shape is the smallest that the network accepts; deep networks are left to the long run.
SMALL = {
    "lenet": (1, 28, 28),
    "vgg9": (3, 32, 32),
    "resnet20": (3, 16, 16),
    "mobilenet-v2-cifar": (3, 16, 16),
    "densenet40": (3, 8, 8),
    "googlenet": (3, 32, 32),
    "ds-cnn": (1, 49, 10),
    "cnn": (1, 28, 28),
    "mlp": (1, 28, 28),
}
LARGE = {
    "alexnet-cifar": (3, 32, 32),
    "vgg11-bn-cifar": (3, 32, 32),
    "vgg16-bn-cifar": (3, 32, 32),
    "vgg19-bn-cifar": (3, 32, 32),
    "resnet56": (3, 16, 16),
    "resnet18": (3, 64, 64),
    "resnet50": (3, 64, 64),
    "resnet152": (3, 64, 64),
    "resnet18-cifar": (3, 16, 16),
    "resnet152-cifar": (3, 16, 16),
    "inception-v4": (3, 107, 107),
    "mobilenet-v2": (3, 64, 64),
    "densenet121": (3, 64, 64),
}


def assert_same(chain: LayerChain, cuts: Sequence[int], data: Tensor) -> None:
    """Check that one pipeline step equals one step of the model."""
    before = copy.deepcopy(chain.module.state_dict())
    outputs, gradients, state = styles.whole(chain.module, data)
    chain.module.load_state_dict(before)
    stages = build_stages(chain, cuts)
    piped, stage_gradients = styles.pipelined(chain, stages, data)
    torch.testing.assert_close(piped, outputs, rtol=0, atol=0, msg="output")
    torch.testing.assert_close(stage_gradients, gradients, rtol=0, atol=0, msg="gradients")
    torch.testing.assert_close(chain.module.state_dict(), state, rtol=0, atol=0, msg="state")
    assert set().union(*(stage.state_dict() for stage in stages)) == set(state)


def zoo_chain(name: str, shape: tuple[int, ...]) -> tuple[LayerChain, Tensor]:
    torch.manual_seed(3)
    module = zoo.build_model(name, classes=10).double()
    return trace_layers(module, shape, dtype=torch.float64), torch.randn(2, *shape, dtype=torch.float64)


@pytest.mark.parametrize("name", SMALL)
def test_zoo_cut_everywhere(name: str) -> None:
    chain, data = zoo_chain(name, SMALL[name])
    assert_same(chain, [cut.after for cut in chain.cuts], data)


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_large_zoo_cut_everywhere(name: str) -> None:
    chain, data = zoo_chain(name, LARGE[name])
    assert_same(chain, [cut.after for cut in chain.cuts], data)


STYLES: list[tuple[type[nn.Module], tuple[int, ...]]] = [
    (styles.Functional, (12,)),
    (styles.Named, (6,)),
    (styles.Encoder, (6, 4)),
    (styles.Residual, (3, 6, 6)),
    (styles.Auxiliary, (6,)),
    (styles.Unrolled, (3, 4)),
    (styles.Halves, (8,)),
    (styles.Aliased, (6,)),
]


@pytest.mark.parametrize(("style", "shape"), STYLES)
def test_other_styles_at_each_cut_and_at_all(style: type[nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(5)
    chain = trace_layers(style().double(), shape, dtype=torch.float64)
    data = torch.randn(4, *shape, dtype=torch.float64)
    cut_points = [cut.after for cut in chain.cuts]
    assert cut_points
    for cuts in [cut_points, *([point] for point in cut_points)]:
        assert_same(chain, cuts, data)


def test_in_process_composition_needs_no_detaching() -> None:
    torch.manual_seed(5)
    chain = trace_layers(styles.Residual().double(), (3, 6, 6), dtype=torch.float64)
    composed = nn.Sequential(*build_stages(chain, [1, 2, 5]))
    data = torch.randn(4, 3, 6, 6, dtype=torch.float64)
    before = copy.deepcopy(chain.module.state_dict())
    expected = styles.whole(chain.module, data)
    chain.module.load_state_dict(before)
    torch.manual_seed(7)
    chain.module.zero_grad()
    outputs = composed(data)
    torch.autograd.backward([styles.loss_of(outputs)])
    torch.testing.assert_close(outputs, expected[0], rtol=0, atol=0)
    torch.testing.assert_close([p.grad for p in chain.module.parameters()], expected[1], rtol=0, atol=0)


def test_stages_hold_the_very_same_tensors_under_the_same_names() -> None:
    chain = trace_layers(styles.Residual(), (3, 6, 6))
    parameters = dict(chain.module.named_parameters())
    devices: list[str] = []
    for stage in build_stages(chain, [0, 3, 6]):
        for name, parameter in stage.named_parameters():
            assert parameter is parameters[name]
            devices.append(name)
    assert sorted(devices) == sorted(parameters)


def test_a_stage_saves_only_what_the_model_saves() -> None:
    chain = trace_layers(styles.Functional(), (12,))
    first, second = build_stages(chain, [0])
    assert set(first.state_dict()) == {"w1", "b1"}
    assert set(second.state_dict()) == {"w2"}


@pytest.mark.parametrize("style", [styles.Functional, styles.Residual, styles.Encoder])
def test_stages_also_evaluate(style: type[nn.Module]) -> None:
    shape = {styles.Functional: (12,), styles.Residual: (3, 6, 6), styles.Encoder: (6, 4)}[style]
    chain = trace_layers(style(), shape)
    stages = build_stages(chain, [0])
    for module in (*stages, chain.module):
        module.eval()
    data = torch.randn(3, *shape)
    assert torch.equal(stages[1](stages[0](data)), chain.module(data))


def test_a_forward_that_differs_in_evaluation_refuses_to_evaluate_in_stages() -> None:
    chain = trace_layers(styles.Auxiliary(), (6,))
    first, _ = build_stages(chain, [0])
    first.eval()
    with pytest.raises(ModelError, match="differs in evaluation"):
        first(torch.randn(2, 6))


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_any_batch_size_goes_through(batch: int) -> None:
    chain = trace_layers(styles.Unrolled(), (3, 4))
    first, second = build_stages(chain, [2])
    data = torch.randn(batch, 3, 4)
    assert torch.equal(second(first(data)), chain.module(data))


def test_illegal_cuts_are_refused_with_the_legal_ones() -> None:
    chain = trace_layers(styles.Unrolled(), (3, 4))
    with pytest.raises(ModelError, match="cannot cut after layer 1 of 4: a cut is allowed after 2"):
        build_stages(chain, [1])
    with pytest.raises(ModelError, match="must increase"):
        build_stages(chain, [2, 2])
    with pytest.raises(ModelError, match=r"this model cannot be cut.*could not be traced"):
        build_stages(trace_layers(styles.Counting(), (6,)), [0])
    residual = trace_layers(styles.Residual(), (3, 6, 6))
    with pytest.raises(ModelError, match="allowed after 0-7"):
        build_stages(residual, [8])


def test_no_cut_is_the_model() -> None:
    chain = trace_layers(styles.Tied(), (5,), dtype=torch.long)
    assert build_stages(chain, []) == (chain.module,)


def test_layers_are_announced_in_order() -> None:
    chain = trace_layers(styles.Encoder().eval(), (6, 4))
    announced: list[int] = []
    module = announce_layers(chain, announced.append).eval()
    data = torch.randn(2, 6, 4)
    assert torch.equal(module(data), chain.module(data))
    assert announced == list(range(len(chain.layers)))


def test_a_stage_can_be_copied_and_trained_on_its_own() -> None:
    chain = trace_layers(styles.Residual(), (3, 6, 6))
    stage = copy.deepcopy(build_stages(chain, [3])[0])
    stage(torch.randn(2, 3, 6, 6)).sum().backward()
    assert all(parameter.grad is not None for parameter in stage.parameters())
    assert all(parameter.grad is None for parameter in chain.module.parameters())

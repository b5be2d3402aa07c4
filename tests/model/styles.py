"""Models in styles that the zoo does not use."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from potluck.model import zoo
from potluck.model.layer_chain import LayerChain, trace_layers

__all__ = ["ZOO", "loss_of", "of_zoo", "pipelined", "whole"]


class Functional(nn.Module):
    """Bare parameters and a functional forward; the bias is fetched before the weight, and dropout by a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(16, 12) / 4)
        self.b1 = nn.Parameter(torch.randn(16))
        self.w2 = nn.Parameter(torch.randn(5, 16) / 4)
        self.register_buffer("scale", torch.full((16,), 0.5), persistent=False)
        self.scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        x = torch.addmm(self.b1, x, self.w1.t()) * self.scale
        x = F.dropout(F.relu(x), 0.5, training=self.training)
        return F.linear(x, self.w2)


class Tied(nn.Module):
    """The output layer's weight is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.body(self.embed(tokens))))
        return out


class Named(nn.Module):
    """Returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = torch.relu(self.body(x))
        return {"logits": self.head(features), "features": features}


class Encoder(nn.Module):
    """A transformer encoder with learned positions and a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.position = nn.Parameter(torch.randn(1, 7, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        out: Tensor = self.head(self.encoder(x + self.position)[:, 0])
        return out


class Branching(nn.Module):
    """Its control flow depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.late = nn.Linear(6, 3)
        self.early = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.early(x)
        if x.sum() > 0:
            x = -x
        out: Tensor = self.late(x)
        return out


class Counting(nn.Module):
    """Cannot be traced, but runs on meta tensors: it keeps a count in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.late = nn.Linear(6, 3)
        self.early = nn.Linear(6, 6)
        self.register_buffer("count", torch.zeros(()))
        self.count: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        out: Tensor = self.late(torch.relu(self.early(x)))
        return out


class Block(nn.Module):
    """A residual block as torchvision writes it: in place, the shortcut computed last."""

    def __init__(self, width: int, out: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, padding=1, groups=groups, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, groups=out, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Conv2d(width, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return F.relu_(out.add_(self.down(x)))


class Residual(nn.Module):
    """In-place ReLU and sums, grouped and depthwise convolutions, dropout, and a batch size read at the top."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.block1 = Block(4, 8, 2)
        self.block2 = Block(8, 8, 8)
        self.drop = nn.Dropout(0.3)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.head = nn.Linear(4 * 12 * 12, 5)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        x = self.block2(self.drop(self.block1(self.stem(x))))
        x = self.up(x).view(batch, 4 * 2 * height * 2 * width)
        out: Tensor = self.head(x)
        return out


class Auxiliary(nn.Module):
    """A second head in training only, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.side = nn.Linear(8, 3)
        self.head = nn.Linear(8, 3)
        self.forgotten = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = torch.relu(self.body(x))
        if self.training:
            return self.head(x), self.side(x)
        out: Tensor = self.head(x)
        return out


class Unrolled(nn.Module):
    """Splits a sequence and loops over it: sizes decide the control flow."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(8, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.size(0), 4, dtype=x.dtype, device=x.device)
        for step in x.unbind(1):
            state = torch.tanh(self.cell(torch.cat([step, state], dim=1)))
        if state.dim() != 2 or len(x.shape) != 3:
            raise ValueError("expects sequences")
        out: Tensor = self.head(state)
        return out


class Halves(nn.Module):
    """A tuple that is taken apart late, and weights that are standardised before they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.middle = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)
        self.norm = nn.LayerNorm((2, 4))
        self.weight = nn.Parameter(torch.randn(3, 8))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        halves = torch.chunk(x, 2, dim=1)
        x = self.norm(torch.stack([self.middle(self.left(halves[0])), self.right(halves[1])], dim=1))
        weight = self.weight - self.weight.mean()
        return F.linear(x.flatten(1), weight / weight.std(), self.bias)


class Aliased(nn.Module):
    """Two aliases of one tensor that is changed in place two layers later."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.third = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        features = self.first(x)
        view = features.view(-1, 2, 3)
        other = self.second(x)
        features.mul_(2)
        out: Tensor = self.third(other + features + view.flatten(1))
        return out


# Variants of another network at a different size are left to the long run.
TWINS = (
    "vgg11-bn",
    "vgg16",
    "vgg16-bn",
    "vgg16-bn-cifar",
    "resnet56",
    "resnet152-cifar",
    "resnet18-cifar",
    "mobilenet-v2",
)
ZOO = [  # the networks of pictures
    pytest.param(name, marks=[pytest.mark.long] if name in TWINS else [])
    for name in zoo.model_names()
    if not zoo.model_entry(name).takes_tokens
]


@cache
def of_zoo(name: str) -> LayerChain:
    """A zoo model's chain on meta tensors, traced once for all tests."""
    with torch.device("meta"):
        module = zoo.build_model(name)
    return trace_layers(module, zoo.model_entry(name).shape)


def loss_of(outputs: object) -> Tensor:
    """A scalar that depends on every output of a model."""
    tensors = outputs.values() if isinstance(outputs, dict) else outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.stack([(tensor * torch.arange(1, tensor.shape[-1] + 1)).sin().sum() for tensor in tensors]).sum()


def whole(module: nn.Module, data: Tensor) -> tuple[object, list[Tensor | None], dict[str, Tensor]]:
    """Output, gradients and state after one training step of the undivided model."""
    torch.manual_seed(7)
    module.zero_grad(set_to_none=True)
    outputs = module(data)
    torch.autograd.backward([loss_of(outputs)])
    return outputs, [_copy(p.grad) for p in module.parameters()], _state(module)


def pipelined(chain: LayerChain, stages: tuple[nn.Module, ...], data: Tensor) -> tuple[object, list[Tensor | None]]:
    """Output and gradients as in a pipeline: every stage on detached inputs, gradients passed back."""
    torch.manual_seed(7)
    chain.module.zero_grad(set_to_none=True)
    stage_inputs, outputs, value = [], [], data
    for stage in stages:
        stage_inputs.append(_arrive(value))
        value = stage(stage_inputs[-1])
        outputs.append(value)
    gradients = _gradients(value)
    for inside, out in zip(reversed(stage_inputs), reversed(outputs), strict=True):
        pairs = [(t, g) for t, g in zip(_several(out), gradients, strict=True) if g is not None and t.requires_grad]
        torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
        gradients = [t.grad for t in _several(inside)]
    return value, [_copy(p.grad) for p in chain.module.parameters()]


def _gradients(outputs: object) -> list[Tensor | None]:
    """The loss's gradient for each of the outputs, as if they did not depend on one another."""
    ends = [end.detach().requires_grad_() for end in _several(outputs)]
    detached = dict(zip(outputs, ends, strict=True)) if isinstance(outputs, dict) else tuple(ends)
    return list(torch.autograd.grad(loss_of(detached), ends))


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()


def _several(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return list(value.values()) if isinstance(value, dict) else list(value)  # type: ignore[call-overload]


def _arrive(value: object) -> object:
    """As if received over the network: new memory, no autograd history."""
    if isinstance(value, Tensor):
        copy = value.detach().clone()
        return copy.requires_grad_(value.requires_grad) if copy.is_floating_point() else copy
    return tuple(_arrive(inner) for inner in _several(value))

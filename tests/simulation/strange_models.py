"""Models that a user may well have and a framework may well stumble over."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

CLASSES, WIDTH = 3, 6


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, CLASSES),
    )  # fmt: skip


def segmenter() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, CLASSES, 1))


def tagger() -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, CLASSES))


def lazy_mlp() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(CLASSES))


def lazy_conv() -> nn.Sequential:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(CLASSES))


class Body(nn.Module):
    """The two layers that most of these models have."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 8)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.last(torch.relu(self.first(x)))


class DictInput(Body):
    def forward(self, left: Tensor, right: Tensor) -> Any:  # type: ignore[override]
        return super().forward(left + right)


class SingleKey(Body):
    def forward(self, batch: dict[str, Tensor]) -> Any:
        return super().forward(batch["features"])


class PairInput(Body):
    def forward(self, first: Tensor, second: Tensor) -> Any:  # type: ignore[override]
        return super().forward(first * second)


class NestedInput(Body):
    def forward(self, batch: Any) -> Any:
        return super().forward(batch["pair"][0] + batch["pair"][1] + batch["more"]["scale"])


class ListInput(Body):
    def forward(self, parts: list[Tensor]) -> Any:
        return super().forward(torch.cat(list(parts), dim=1))


class TupleOutput(Body):
    def forward(self, x: Tensor) -> Any:
        hidden = torch.relu(self.first(x))
        return self.last(hidden), hidden


class DictOutput(Body):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": super().forward(x), "input": x}


class Output(NamedTuple):
    logits: Tensor
    loss: Tensor | None = None


class LogitsOutput(Body):
    def forward(self, x: Tensor) -> Output:
        return Output(logits=super().forward(x))


class Attributes(OrderedDict[str, Tensor]):
    """As the outputs of Hugging Face's models: a dict whose entries are attributes too."""

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class AttributesOutput(Body):
    def forward(self, x: Tensor) -> Attributes:
        return Attributes(logits=super().forward(x))


class Branching(Body):
    """Which way it goes depends on the values of a batch."""

    def forward(self, x: Tensor) -> Any:
        hidden = torch.relu(self.first(x))
        if hidden.sum() > 1e9:
            hidden = hidden * 2
        return self.last(hidden)


class SideEffects(Body):
    """Counts its calls, keeps its last input and prints."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.last_input: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        self.last_input = x.detach()
        print("forward")  # noqa: T201
        return super().forward(x)


class Locked(Body):
    """Holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x: Tensor) -> Any:
        with self.lock:
            return super().forward(x)


class Holding(Body):
    """Holds a set, a function and a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.names = {"a", "b"}
        self.activation = torch.tanh
        self.scale = torch.tensor(0.5)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.activation(self.first(x)) * self.scale)


class Raising(Body):
    def forward(self, x: Tensor) -> Any:
        raise LookupError("my own problem")


class RaisingLater(Body):
    """Raises in the middle of the run: the probes before it call the model with two samples only."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.steps += 1
        if self.training and len(x) > 2 and int(self.steps) > 2:
            raise LookupError("my own problem, later")
        return super().forward(x)


class FunctionalDropout(Body):
    def forward(self, x: Tensor) -> Any:
        return self.last(F.dropout(torch.relu(self.first(x)), 0.3, self.training))


class UnusedParameters(Body):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(5, 5)


class TiedParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.middle = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Any:
        return self.head(torch.tanh(self.middle(self.embed(tokens))))


class ComplexParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, CLASSES, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Any:
        return (x.to(torch.complex64) @ self.weight).abs()


class IntegerBuffer(Body):
    order: Tensor
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(WIDTH).flip(0))
        self.register_buffer("mask", torch.ones(WIDTH, dtype=torch.bool))

    def forward(self, x: Tensor) -> Any:
        return super().forward(torch.where(self.mask, x[:, self.order], 0.0))


class MixedDtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 8, dtype=torch.float64)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.first(x.double()).float())


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 5)
        self.cell = cell(5, 6, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, tokens: Tensor) -> Any:
        return self.head(self.cell(self.embed(tokens))[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Any:
        x = self.embed(tokens)
        return self.head(self.attend(x, x, x, need_weights=False)[0].mean(1))


class SparseEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, sparse=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, tokens: Tensor) -> Any:
        return self.head(self.embed(tokens).mean(1))


class Seq2Seq(nn.Module):
    """torch's own encoder and decoder, whose attention loses heads."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, source: Tensor, target: Tensor) -> Any:
        return self.head(self.transformer(self.embed(source), self.embed(target)))


class FixedReshape(nn.Module):
    """Writes down the number of channels between two layers, as SegFormer does around its convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.first = nn.Linear(8, 16)
        self.conv = nn.Conv2d(16, 16, (3, 1), padding=(1, 0), groups=16)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, tokens: Tensor) -> Any:
        rows = self.first(self.embed(tokens)).transpose(1, 2).view(tokens.size(0), 16, 5, 1)
        return self.last(torch.relu(self.conv(rows)).flatten(2).transpose(1, 2)).mean(1)


class Dispatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleDict({"left": nn.Linear(WIDTH, CLASSES), "right": nn.Linear(WIDTH, CLASSES)})

    def forward(self, x: Tensor) -> Any:
        return self.branches["left"](x) - self.branches["right"](x)


class Recursive(Body):
    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.recur(torch.relu(self.first(x)), 3))

    def recur(self, x: Tensor, depth: int) -> Any:
        return x if depth == 0 else self.recur(torch.relu(self.again(x)), depth - 1)


class MapsSamples(Body):
    """Takes one sample, without a batch dimension."""

    def forward(self, x: Tensor) -> Any:
        return torch.stack([super(MapsSamples, self).forward(sample) for sample in x])


class NoParameters(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x[:, :CLASSES]


class ScalarOutput(Body):
    """Averages over the batch, so that outputs have no batch dimension."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x).mean()


class KeywordOptions(Body):
    """Takes options besides its inputs."""

    def forward(self, x: Tensor, scale: float = 1.0, *, verbose: bool = False) -> Any:
        return super().forward(x) * scale


def frozen_everything() -> nn.Module:
    return mlp().requires_grad_(False)


def frozen_body() -> nn.Module:
    model = Body()
    model.first.requires_grad_(False)
    return model


def weight_normed() -> nn.Module:
    model = Body()
    parametrizations.weight_norm(model.first)
    return model


def batch_normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))


def scripted() -> nn.Module:
    return torch.jit.script(mlp())


def roberta() -> Any:
    """It expands a `torch.nn.Buffer`, and what comes of that is marked as a buffer too."""
    transformers = pytest.importorskip("transformers")
    config = transformers.RobertaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16, num_labels=CLASSES,
    )  # fmt: skip
    return transformers.RobertaForSequenceClassification(config)


def t5() -> Any:
    """Its encoder, decoder and head share one table of embeddings, under names of their own."""
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=11, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)

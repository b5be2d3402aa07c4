"""A pipeline may cut between two uses of one weight: outputs, gradients and state equal the whole model's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from potluck.model import zoo
from potluck.model.layer_chain import trace_layers
from potluck.model.stage_modules import build_stages
from potluck.model.tied_weights import carry_tied_weights, uncut_reason
from tests.model import styles


class BareTie(nn.Module):
    """The head uses the embedding's weight as a bare parameter, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, padding_idx=0)
        self.body = nn.Linear(6, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(self.embed(tokens)))
        return nn.functional.linear(hidden, self.embed.weight) + self.embed.weight.sum(1)


class SharedCell(nn.Module):
    """One layer, called twice, shares weight and bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.cell = nn.Linear(6, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.tanh(self.cell(torch.relu(self.cell(self.embed(tokens)))))


class SharedEmbedding(nn.Module):
    """An embedding that is called twice, as for the two texts of an encoder and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, padding_idx=3)
        self.body = nn.Linear(6, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.tanh(self.body(self.embed(tokens))) + self.embed(tokens.flip(1))  # type: ignore[no-any-return]


class SharedNorm(nn.Module):
    """A module that cannot be called as a function of its weight is used by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.second(self.norm(self.first(x))))  # type: ignore[no-any-return]


def gpt() -> nn.Module:
    return zoo.build_model("gpt", vocabulary=11, block=5, depth=2, width=8, heads=2)


@pytest.mark.parametrize("build", [styles.Tied, BareTie, SharedCell, SharedEmbedding, gpt])
def test_every_cut_equals_the_whole_model(build: type[nn.Module]) -> None:
    torch.manual_seed(5)
    chain = carry_tied_weights(trace_layers(build(), (5,), dtype=torch.int64))
    assert chain.tied_parameters
    cuts = [cut.after for cut in chain.cuts]
    assert cuts == list(range(len(chain.layers) - 1))
    data = torch.randint(11, (4, 5))
    for chosen in [cuts, *([cut] for cut in cuts)]:
        before = copy.deepcopy(chain.module.state_dict())
        outputs, gradients, state = styles.whole(chain.module, data)
        chain.module.load_state_dict(before)
        stages = build_stages(chain, chosen)
        piped, stage_gradients = styles.pipelined(chain, stages, data)
        torch.testing.assert_close(piped, outputs, rtol=0, atol=0)
        torch.testing.assert_close(stage_gradients, gradients, rtol=0, atol=0)
        held = [name for stage in stages for name, _ in stage.named_parameters()]
        assert sorted(held) == sorted(name for name, _ in chain.module.named_parameters())
        assert set(chain.module.state_dict()) == set(state)


def test_the_weight_crosses_with_the_activations() -> None:
    chain = carry_tied_weights(trace_layers(styles.Tied(), (5,), dtype=torch.int64))
    assert [[tensor.shape for tensor in cut.crossing] for cut in chain.cuts] == [[(11, 6), (5, 6)], [(11, 6), (5, 6)]]


def test_what_cannot_be_passed_on_stays_together() -> None:
    chain = trace_layers(SharedNorm(), (5,))
    assert carry_tied_weights(chain).cuts == chain.cuts == ()
    assert uncut_reason(chain) == "its layers 'first' and 'second' share 'norm.weight'; give each a weight of its own"
    assert uncut_reason(trace_layers(styles.Named(), (6,))) is None


def test_a_chain_without_ties_is_unchanged() -> None:
    chain = trace_layers(styles.Named(), (6,))
    assert carry_tied_weights(chain) is chain

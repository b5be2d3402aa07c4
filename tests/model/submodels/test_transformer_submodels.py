"""Sub-models of transformers: whole heads and feed-forward units are dropped, as if masked in the whole model."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from potluck.model import zoo
from potluck.model.flop_counter import count_macs
from potluck.model.losses import token_cross_entropy as loss
from potluck.model.model_replica import ModelReplica
from potluck.model.submodels.narrow_network import build_narrow_network, width_agnostic_graph
from potluck.model.submodels.slimmable_model import SlimmableModel, choose_subsets, random_units, trace_slimmable
from potluck.model.submodels.submodel_selection import KeptIndices, Subsets
from potluck.model.submodels.width_workspace import WidthWorkspace

TINY = {"vocabulary": 11, "block": 6, "depth": 2, "width": 12, "heads": 3}
TOKENS = 6


class ByHand(nn.Module):
    """Written as in many tutorials: sizes by name, a buffer as mask, products instead of fused attention."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 12)
        self.position = nn.Embedding(TOKENS, 12)
        self.norm1, self.norm2 = nn.LayerNorm(12), nn.LayerNorm(12)
        self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)
        self.gate, self.up, self.down = nn.Linear(12, 20), nn.Linear(12, 20), nn.Linear(20, 12)
        self.head = nn.Linear(12, 11)
        self.drop = nn.Dropout(0.0)
        self.register_buffer("mask", torch.tril(torch.ones(TOKENS, TOKENS))[None, None])

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length = tokens.size()
        x = self.token(tokens) + self.position(torch.arange(length, device=tokens.device))
        q, k, v = self.qkv(self.norm1(x)).split(12, dim=2)
        q = q.view(batch, length, 3, 4).transpose(1, 2)
        k = k.view(batch, length, 3, 12 // 3).transpose(1, 2)
        v = v.view(batch, length, 3, 4).transpose(1, 2)
        scores = (q @ k.transpose(-2, -1)) * (k.size(-1) ** -0.5)
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        y = self.drop(F.softmax(scores, dim=-1)) @ v
        x = x + self.out(y.transpose(1, 2).contiguous().view(batch, length, 12))
        z = self.norm2(x)
        return self.head(x + self.down(F.silu(self.gate(z)) * self.up(z)))  # type: ignore[no-any-return]


class Rotary(nn.Module):
    """As in Llama: separate projections, rotated queries and keys, no biases."""

    frequency: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 12)
        self.norm = nn.RMSNorm(12)
        self.q, self.k, self.v, self.o = (nn.Linear(12, 12, bias=False) for _ in range(4))
        self.head = nn.Linear(12, 11)
        self.register_buffer("frequency", torch.tensor([1.0, 0.1, 1.0, 0.1]))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        normed = self.norm(x)
        shape = (*normed.shape[:-1], -1, 4)
        q, k, v = (layer(normed).view(shape).transpose(1, 2) for layer in (self.q, self.k, self.v))
        angle = torch.arange(tokens.shape[1], device=tokens.device)[None, :, None] * self.frequency
        cos, sin = angle.cos().unsqueeze(1), angle.sin().unsqueeze(1)
        q, k = (each * cos + torch.cat((-each[..., 2:], each[..., :2]), dim=-1) * sin for each in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + self.o(y.transpose(1, 2).reshape(*x.shape[:-1], -1)))  # type: ignore[no-any-return]


class Stacked(nn.Module):
    """As in many vision transformers: queries, keys and values along an axis of their own."""

    def __init__(self, unbind: bool = True) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 12)
        self.norm = nn.LayerNorm(12)
        self.qkv, self.out, self.head = nn.Linear(12, 36), nn.Linear(12, 12), nn.Linear(12, 11)
        self.unbind = unbind

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        batch, length, width = x.shape
        qkv = self.qkv(self.norm(x)).reshape(batch, length, 3, 3, width // 3).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0) if self.unbind else (qkv[0], qkv[1], qkv[2])
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        return self.head(x + self.out(y))  # type: ignore[no-any-return]


class TorchEncoder(nn.Module):
    """torch's own encoder layers, with a mask of padding and one of the future."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 12)
        layer = nn.TransformerEncoderLayer(12, 3, 20, 0.0, batch_first=batch_first, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(12, 11)
        self.batch_first = batch_first

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        future = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        if self.batch_first:
            return self.head(self.encoder(x, future, tokens == 0))  # type: ignore[no-any-return]
        return self.head(self.encoder(x.transpose(0, 1), future).transpose(0, 1))  # type: ignore[no-any-return]


def of_zoo(name: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: zoo.build_model(name, **{**TINY, **options})  # type: ignore[arg-type]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt": of_zoo("gpt"),
    "gpt-untied": of_zoo("gpt", tie=False),
    "text-encoder": of_zoo("text-encoder", classes=11),
    "by hand": ByHand,
    "rotary": Rotary,
    "stacked": Stacked,
    "stacked, by index": lambda: Stacked(unbind=False),
    "torch": TorchEncoder,
    "torch, tokens first": lambda: TorchEncoder(batch_first=False),
}


def hugging_face(kind: str) -> Callable[[], nn.Module]:
    """Models of the library, built from a configuration."""

    def build() -> nn.Module:
        os.environ["HF_HUB_OFFLINE"] = "1"
        library = pytest.importorskip("transformers")
        if kind == "llama":
            config = library.LlamaConfig(
                vocab_size=11, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3
            )
            return library.LlamaForCausalLM(config)  # type: ignore[no-any-return]
        if kind == "gpt2":
            sizes = {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_inner": 20, "n_positions": TOKENS}
            drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
            config = library.GPT2Config(vocab_size=11, bos_token_id=0, eos_token_id=0, **sizes, **drop)
            return library.GPT2LMHeadModel(config)  # type: ignore[no-any-return]
        sizes = {"dim": 12, "hidden_dim": 20, "n_layers": 2, "n_heads": 3, "max_position_embeddings": TOKENS}
        drop = dict.fromkeys(("dropout", "attention_dropout"), 0.0)
        return library.DistilBertForMaskedLM(library.DistilBertConfig(vocab_size=11, **sizes, **drop))  # type: ignore[no-any-return]

    return build


MODELS |= {kind: hugging_face(kind) for kind in ("llama", "gpt2", "distilbert")}
every_model = pytest.mark.parametrize("name", MODELS)


@cache
def traced(name: str, dtype: torch.dtype = torch.float64) -> SlimmableModel:
    torch.manual_seed(4)
    module = MODELS[name]().to(dtype)
    for parameter in module.parameters():  # so that no head is negligible
        nn.init.normal_(parameter, std=0.3)
    return trace_slimmable(module, (TOKENS,), dtype=torch.int64)


def batch(name: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(1, 11, (3, TOKENS), generator=generator)
    if name in ("text-encoder", "torch"):
        tokens[0, 4:] = 0
    return tokens, tokens[:, 0] if name == "text-encoder" else tokens.roll(-1, 1)


def drawn(slimmable: SlimmableModel, fraction: float = 0.5) -> Subsets:
    rng = np.random.default_rng(1)
    return choose_subsets(slimmable, slimmable.kept_counts([1 - fraction] * len(slimmable.sets)), random_units(rng))


def hide(module: nn.Module, slimmable: SlimmableModel, subsets: Subsets, scaled: bool) -> None:
    """Feed zeros for dropped heads and units to the layers that mix them."""
    for name, axes in slimmable.axes.items():
        inputs = KeptIndices(subsets).axis_indices(axes.inputs)
        if inputs is None or axes.inputs is None:
            continue
        (run,) = axes.inputs
        assert run.set is not None
        kept = subsets[run.set]
        assert kept is not None
        mask = torch.zeros(run.units * run.features, dtype=torch.float64)
        mask[torch.from_numpy(inputs)] = run.units / len(kept) if scaled else 1.0
        weight = module.get_parameter(name)
        weight.data *= mask[:, None] if axes.inputs_first else mask  # a zero weight hides what it would have read


@every_model
def test_heads_and_feed_forward_units_are_what_is_dropped(name: str) -> None:
    sizes = {channels.name: (channels.size, channels.grain) for channels in traced(name).sets}
    heads = {path: size for path, size in sizes.items() if size == (3, 4)}
    blocks = 1 if name in ("by hand", "rotary") or name.startswith("stacked") else 2
    assert len(heads) == blocks
    assert len(sizes) - len(heads) == (0 if name == "rotary" or name.startswith("stacked") else blocks)


@every_model
@pytest.mark.parametrize("scaled", [True, False])
def test_the_gradient_equals_that_of_the_whole_model_with_masked_heads_and_units(name: str, scaled: bool) -> None:
    slimmable, data = traced(name), batch(name)
    subsets = drawn(slimmable)
    masked = copy.deepcopy(slimmable.chain.module)
    hide(masked, slimmable, subsets, scaled)
    expected, expected_loss = ModelReplica(masked, slimmable.layout, loss).gradient(*data)
    replica = ModelReplica(slimmable.chain.module, slimmable.layout, loss)
    submodel = WidthWorkspace(slimmable, replica, scaled=scaled).extract_submodel(subsets)
    gradient, own_loss = submodel.replica.gradient(*data)
    assert submodel.selection is not None
    assert own_loss == pytest.approx(expected_loss, rel=1e-10)
    factors = weight_factors(slimmable, subsets, scaled)
    chosen = (expected * factors)[submodel.selection.params.index]
    assert float((gradient - chosen).abs().max()) <= 1e-10 * max(1.0, float(chosen.abs().max()))
    assert len(chosen) < len(expected)


def weight_factors(slimmable: SlimmableModel, subsets: Subsets, scaled: bool) -> Tensor:
    """The derivative of a masked weight by the weight itself."""
    ones = copy.deepcopy(slimmable.chain.module)
    for parameter in ones.parameters():
        nn.init.ones_(parameter)
    hide(ones, slimmable, subsets, scaled)
    return ModelReplica(ones, slimmable.layout, loss).state.params.clone()


@every_model
def test_full_width_equals_plain_training_exactly(name: str) -> None:
    slimmable, data = traced(name, torch.float32), batch(name)
    module = slimmable.chain.module
    all_units: Subsets = [np.arange(channels.size) for channels in slimmable.sets]
    reference, loaned = (ModelReplica(module, slimmable.layout, loss) for _ in range(2))
    workspace = WidthWorkspace(slimmable, loaned, scaled=True)
    for subsets in ([None] * len(slimmable.sets), all_units, all_units):
        gradient, expected = reference.gradient(*data)
        reference.state.params.add_(gradient, alpha=-0.01)
        own = workspace.train_step(subsets, data, lambda weights, gradient, _: weights.add_(gradient, alpha=-0.01))
        assert own == expected
    assert torch.equal(reference.state.params, loaned.state.params)


@every_model
def test_macs_are_those_of_the_flop_counter_at_any_width(name: str) -> None:
    slimmable = traced(name)
    assert slimmable.full_macs == sum(layer.macs for layer in slimmable.chain.layers)
    counts = slimmable.kept_counts([0.4] * len(slimmable.sets))
    small = build_narrow_network(slimmable, width_agnostic_graph(slimmable), counts)
    assert slimmable.forward_macs(counts) == count_macs(small, (TOKENS,), dtype=torch.int64) < slimmable.full_macs


@every_model
def test_gather_and_scatter_change_only_what_is_kept(name: str) -> None:
    slimmable = traced(name)
    selection = slimmable.select_units(drawn(slimmable)).params
    vector = torch.arange(slimmable.layout.param_bounds[-1], dtype=torch.float64)
    small = selection.gather(vector)
    assert torch.equal(small, vector[selection.index])
    target = torch.full_like(vector, -1.0)
    selection.scatter(small, target)
    assert torch.equal(target[selection.index], small)
    assert int((target == -1).sum()) == len(vector) - selection.size


def test_a_narrow_gpt_evaluates_texts_of_any_length() -> None:
    slimmable = traced("gpt", torch.float32)
    narrowest = build_narrow_network(slimmable, width_agnostic_graph(slimmable), [1] * len(slimmable.sets))
    assert narrowest.eval()(torch.zeros(2, 3, dtype=torch.int64)).shape == (2, 3, 11)


class TiedWithoutNorm(nn.Module):
    """The layer before the tied head would be narrowed if the embedding did not use the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 12)
        self.hidden, self.body = nn.Linear(12, 20), nn.Linear(20, 12)
        self.head = nn.Linear(12, 11, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(F.relu(self.hidden(self.token(tokens)))))  # type: ignore[no-any-return]


def test_a_weight_that_an_embedding_shares_is_never_narrowed() -> None:
    slimmable = trace_slimmable(TiedWithoutNorm(), (TOKENS,), dtype=torch.int64)
    assert [channels.name for channels in slimmable.sets] == ["hidden"]


class GroupedQueries(nn.Module):
    """Two heads share a key and a value: they stay, and the feed-forward units are dropped all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 12)
        self.q, self.kv, self.o = nn.Linear(12, 16), nn.Linear(12, 16), nn.Linear(16, 12)
        self.hidden, self.down = nn.Linear(12, 20), nn.Linear(20, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in self.kv(x).chunk(2, -1))
        q = self.q(x).unflatten(-1, (4, 4)).transpose(1, 2)
        k, v = (each[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for each in (k, v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.hidden(x)))  # type: ignore[no-any-return]


def test_heads_that_cannot_be_dropped_stay_whole() -> None:
    slimmable = trace_slimmable(GroupedQueries(), (TOKENS,), dtype=torch.int64)
    assert [channels.name for channels in slimmable.sets] == ["hidden"]

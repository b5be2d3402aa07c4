"""Transformers as chains of layers: embeddings, linear layers and norms are found, and cuts between blocks are thin."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from potluck.model import zoo
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.stage_modules import build_stages
from tests.model import styles

TINY = {"vocabulary": 11, "block": 8, "depth": 2, "width": 16, "heads": 4}


def trace_tiny(name: str, **options: object) -> LayerChain:
    torch.manual_seed(2)
    return trace_layers(zoo.build_model(name, **{**TINY, **options}), (8,), dtype=torch.int64)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "last"), [("gpt", "head"), ("text-encoder", "classifier")])
def test_layers_of_the_zoos_transformers(name: str, last: str) -> None:
    chain = trace_tiny(name)
    inner = ["attention.qkv", "attention.out", "feed_forward.hidden", "feed_forward.out"]
    blocks = [f"blocks.{number}.{layer}" for number in (0, 1) for layer in inner]
    assert chain.exact
    assert not chain.note
    assert [layer.name for layer in chain.layers] == ["token", "position", *blocks, last]
    assert sum(layer.param_bytes for layer in chain.layers) == 4 * sum(p.numel() for p in chain.module.parameters())


def test_the_norm_of_a_block_belongs_to_the_layer_after_it_and_the_last_one_to_the_layer_before() -> None:
    parameters = {layer.name: layer.parameters for layer in trace_tiny("gpt").layers}
    assert parameters["position"] == ("position.weight",)
    assert parameters["blocks.1.attention.qkv"] == ("blocks.1.norm1.weight", "blocks.1.attention.qkv.weight")
    assert parameters["blocks.1.feed_forward.hidden"][0] == "blocks.1.norm2.weight"
    assert parameters["blocks.1.feed_forward.out"] == ("blocks.1.feed_forward.out.weight", "norm.weight")


def test_macs_by_hand() -> None:
    """Per sample: every token through every weight, and every pair of tokens through queries, keys and values."""
    macs = {layer.name: layer.macs for layer in trace_tiny("gpt").layers}
    assert macs["token"] == macs["position"] == 0
    assert macs["blocks.0.attention.qkv"] == 8 * 16 * 48 + 2 * 8 * 8 * 16
    assert macs["blocks.0.attention.out"] == 8 * 16 * 16
    assert macs["blocks.0.feed_forward.hidden"] == macs["blocks.0.feed_forward.out"] == 8 * 16 * 64
    assert macs["head"] == 8 * 16 * 11


def test_one_tensor_crosses_between_two_blocks() -> None:
    assert crossing_tensors(untied_gpt(), 5) == [((8, 16), "float32")]
    assert crossing_tensors(trace_tiny("text-encoder"), 5) == [((8,), "bool"), ((8, 16), "float32")]
    assert crossing_tensors(trace_tiny("text-encoder"), 9) == [((16,), "float32")]


def crossing_tensors(chain: LayerChain, after: int) -> list[tuple[tuple[int, ...], str]]:
    (cut,) = (cut for cut in chain.cuts if cut.after == after)
    return [(tensor.shape, tensor.dtype) for tensor in cut.crossing]


def untied_gpt(dropout: float = 0.0) -> LayerChain:
    return trace_tiny("gpt", tie=False, dropout=dropout)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("name", ["gpt", "text-encoder"])
def test_stages_equal_the_whole_model_in_both_modes(name: str, dropout: float) -> None:
    chain = untied_gpt(dropout) if name == "gpt" else trace_tiny(name, dropout=dropout)
    cuts = [cut.after for cut in chain.cuts]
    assert cuts == list(range(len(chain.layers) - 1))
    stages = build_stages(chain, cuts)
    data = torch.randint(11, (3, 8))
    outputs, gradients, _ = styles.whole(chain.module, data)
    piped, stage_gradients = styles.pipelined(chain, stages, data)
    torch.testing.assert_close((piped, stage_gradients), (outputs, gradients), rtol=0, atol=0)
    value: Tensor = data
    for stage in stages:
        value = stage.eval()(value)
    assert torch.equal(value, chain.module.eval()(data))


class PreNormEncoder(nn.Module):
    """torch's own encoder layers, with norms before attention and a mask of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 16)
        layers = [nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True, norm_first=True) for _ in range(2)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.token(tokens)
        for layer in self.layers:
            embedded = layer(embedded, src_key_padding_mask=tokens == 0)
        return self.head(embedded.mean(1))  # type: ignore[no-any-return]


def test_torchs_own_layers_with_norms_first() -> None:
    torch.manual_seed(2)
    chain = trace_layers(PreNormEncoder(), (8,), dtype=torch.int64)
    assert chain.exact
    inner = [f"layers.{number}.{layer}" for number in (0, 1) for layer in ("self_attn", "linear1", "linear2")]
    assert [layer.name for layer in chain.layers] == ["token", *inner, "head"]
    assert chain.layers[1].parameters[:2] == ("layers.0.norm1.weight", "layers.0.norm1.bias")
    cuts = [cut.after for cut in chain.cuts]
    assert cuts == list(range(len(chain.layers) - 1))
    data = torch.randint(1, 11, (3, 8))
    data[0, 5:] = 0
    outputs, gradients, _ = styles.whole(chain.module, data)
    piped, stage_gradients = styles.pipelined(chain, build_stages(chain, cuts), data)
    torch.testing.assert_close((piped, stage_gradients), (outputs, gradients), rtol=0, atol=0)

"""Hugging Face models: built from settings, recorded by running, cut into stages that equal the whole model."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from potluck.errors import ModelError, SettingError
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.losses import token_cross_entropy
from potluck.model.model_replica import ModelReplica
from potluck.model.stage_modules import announce_layers, build_stages
from potluck.model.submodels.slimmable_model import trace_slimmable
from potluck.model.submodels.width_workspace import WidthWorkspace
from potluck.model.transformers_model import ModelSource, import_extra, read_config
from potluck.settings import decode_settings, encode_settings
from tests.model.submodels.test_transformer_submodels import drawn, hide, weight_factors

CLASSIFIER = "AutoModelForSequenceClassification"
LLAMA = {
    "model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 50,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50, "n_positions": 12,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
DISTILBERT = {"model_type": "distilbert", "dim": 16, "n_layers": 2, "n_heads": 2, "vocab_size": 50, "hidden_dim": 32}
BERT = {
    "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50,
    "intermediate_size": 32,
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("one_thread")


def source(**table: Any) -> ModelSource:
    return decode_settings({"kind": "transformers", **table}, ModelSource, "task.model")


def build(seed: int = 0, classes: int = 3, **table: Any) -> Any:
    torch.manual_seed(seed)
    return source(**table).build(classes)


def weights_equal(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(name == same and torch.equal(value, twin) for (name, value), (same, twin) in pairs)


def test_weights_come_from_the_seed() -> None:
    assert weights_equal(build(1, config=LLAMA), build(1, config=LLAMA))
    assert not weights_equal(build(1, config=LLAMA), build(2, config=LLAMA))


def test_a_classifier_has_the_classes_of_the_data() -> None:
    assert build(config=DISTILBERT, auto=CLASSIFIER, classes=7).config.num_labels == 7
    assert build(config={**DISTILBERT, "num_labels": 4}, auto=CLASSIFIER, classes=7).config.num_labels == 4


def test_only_adapters_are_trained() -> None:
    module = build(config=LLAMA, lora={"rank": 2, "targets": ["q_proj"]})
    trained = {name: parameter.numel() for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name for name in trained)
    assert sum(trained.values()) == 2 * 2 * (16 + 16)  # two blocks: rank × (inputs + outputs)


def test_a_folder_with_weights_and_one_with_only_a_config(tmp_path: Path) -> None:
    module = build(config=LLAMA)
    module.save_pretrained(tmp_path / "full")
    module.config.save_pretrained(tmp_path / "config")
    assert weights_equal(build(5, config=str(tmp_path / "full")), module)
    fresh = build(5, config=str(tmp_path / "config"))
    assert not weights_equal(fresh, module)
    assert weights_equal(fresh, build(5, config=read_config(tmp_path / "config" / "config.json")))


def test_settings_are_written_and_read_back() -> None:
    written = source(config=LLAMA, lora={"rank": 4, "targets": ["q_proj"]})
    assert decode_settings(encode_settings(written), ModelSource, "task.model") == written


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no config": ({}, "task.model.config: this key is missing"),
    "no model type": ({"config": {}}, "task.model.config.model_type: this key is missing"),
    "unknown key": ({"config": LLAMA, "loar": {}}, "task.model.loar: unknown key"),
    "unknown model type": (
        {"config": {**LLAMA, "model_type": "lama"}},
        "task.model.config.model_type: transformers has no model type 'lama' (did you mean 'llama'?)",
    ),
    "unknown setting": ({"config": {**LLAMA, "hiden_size": 8}}, "task.model.config.hiden_size: unknown key"),
    "wrong setting": ({"config": {**LLAMA, "hidden_size": 17}}, "not a multiple of the number of attention heads"),
    "wrong type": ({"config": {**LLAMA, "hidden_size": "x"}}, "expected int, got str"),
    "no such path": ({"config": "./nowhere"}, "task.model.config: there is no file or folder './nowhere'"),
    "not on the Hub": ({"config": "nobody/nothing"}, "'nobody/nothing', which is no local folder, from the Hub"),
    "no auto class": ({"config": LLAMA, "auto": "LlamaModel"}, "task.model.auto: 'LlamaModel' is not an auto class"),
    "misspelt auto class": ({"config": LLAMA, "auto": "AutoModelForCasualLM"}, "did you mean 'AutoModelForCausalLM'?"),
    "model without such a head": ({"config": LLAMA, "auto": "AutoModelForMaskedLM"}, "cannot build AutoModelForMask"),
    "rank 0": ({"config": LLAMA, "lora": {"rank": 0}}, "task.model.lora.rank: expected `int` >= 1"),
    "unknown target": (
        {"config": LLAMA, "lora": {"targets": ["q_prj"]}},
        "task.model.lora.targets: no layer is called 'q_prj'; layers of this model: down_proj",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(case: str) -> None:
    table, expected = REFUSED[case]
    with pytest.raises(SettingError) as caught:
        build(**table)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_extra_says_what_to_install() -> None:
    with pytest.raises(ModelError, match=r"install it with: pip install 'potluck\[hf\]'"):
        import_extra("transformers_that_nobody_has")


def test_importing_potluck_imports_no_extra() -> None:
    code = (
        "import sys, potluck, potluck.job; print([m for m in ('transformers', 'peft', 'datasets') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


RECORDED: dict[str, dict[str, Any]] = {
    "llama": {"config": LLAMA},
    "llama, adapters": {"config": LLAMA, "lora": {"rank": 2, "targets": ["q_proj", "down_proj"]}},
    "llama, adapters with dropout": {"config": LLAMA, "lora": {"rank": 2, "dropout": 0.3}},
    "gpt2, untied, dropout": {"config": {**GPT2, "tie_word_embeddings": False}},
    "gpt2 classifier": {"config": {**GPT2, "pad_token_id": 0}, "auto": CLASSIFIER},
    "distilbert, dropout": {"config": DISTILBERT, "auto": CLASSIFIER},
    "bert, dropout": {"config": BERT, "auto": CLASSIFIER},
    "roberta": {"config": {**BERT, "model_type": "roberta"}, "auto": CLASSIFIER},
}


def chain_of(module: nn.Module) -> LayerChain:
    return trace_layers(module, (5,), dtype=torch.int64)


def outputs_and_gradients(module: nn.Module, stages: tuple[nn.Module, ...], training: bool) -> list[torch.Tensor]:
    """What the stages return and the gradients of the module's weights, with the same random numbers each time."""
    for stage in stages:
        stage.train(training)
    value: Any = torch.randint(1, 50, (4, 5), generator=torch.Generator().manual_seed(2))
    torch.manual_seed(3)
    for stage in stages:
        value = stage(value)
    weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
    loss = value.logits.square().mean()
    return [value.logits.detach(), *torch.autograd.grad(loss, weights, materialize_grads=True, allow_unused=True)]


@pytest.mark.parametrize("case", RECORDED)
def test_stages_equal_the_model_bit_for_bit(case: str) -> None:
    module = build(**RECORDED[case])
    chain = chain_of(module)
    assert chain.exact
    assert not chain.note
    allowed = [cut.after for cut in chain.cuts]
    assert len(allowed) > len(chain.layers) * 2 // 3  # at most four tensors may cross
    announced: list[int] = []
    composed = [(announce_layers(chain, announced.append),), build_stages(chain, allowed)]
    for training in (True, False):
        whole = outputs_and_gradients(module, (module,), training)
        for stages in composed:
            assert all(map(torch.equal, outputs_and_gradients(module, stages, training), whole))
    assert announced == [*range(len(chain.layers))] * 2


NARROWED: dict[str, dict[str, Any]] = {
    "llama": {"config": {**LLAMA, "num_key_value_heads": 2}},
    "distilbert": {"config": {**DISTILBERT, "dropout": 0.0, "attention_dropout": 0.0}, "auto": "AutoModelForMaskedLM"},
    "bert": {
        "config": {**BERT, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "auto": "AutoModelForMaskedLM",
    },
    "roberta, tied under another name": {
        "config": {**BERT, "model_type": "roberta", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "auto": "AutoModelForMaskedLM",
    },
}


@pytest.mark.parametrize("case", NARROWED)
def test_heads_and_feed_forward_units_can_be_left_out(case: str) -> None:
    """The gradient of a narrow model is that of the whole model with masked heads and units."""
    module = build(**NARROWED[case]).double()
    for parameter in module.parameters():  # so that no head is negligible
        nn.init.normal_(parameter, std=0.3)
    slimmable = trace_slimmable(module, (5,), dtype=torch.int64)
    assert sorted((channels.size, channels.grain) for channels in slimmable.sets) == [(2, 8)] * 2 + [(32, 1)] * 2
    tokens = torch.randint(1, 50, (4, 5), generator=torch.Generator().manual_seed(2))
    subsets, masked = drawn(slimmable), copy.deepcopy(module)
    hide(masked, slimmable, subsets, scaled=True)
    expected, expected_loss = ModelReplica(masked, slimmable.layout, token_cross_entropy).gradient(tokens, tokens)
    replica = ModelReplica(module, slimmable.layout, token_cross_entropy)
    submodel = WidthWorkspace(slimmable, replica, scaled=True).extract_submodel(subsets)
    gradient, loss = submodel.replica.gradient(tokens, tokens)
    assert submodel.selection is not None
    chosen = (expected * weight_factors(slimmable, subsets, scaled=True))[submodel.selection.params.index]
    assert loss == pytest.approx(expected_loss, rel=1e-10)
    torch.testing.assert_close(gradient, chosen, rtol=1e-9, atol=1e-10)
    assert len(chosen) < len(expected)


def test_tied_embeddings_stay_together() -> None:
    chain = chain_of(build(config=GPT2))
    assert chain.exact
    [tied] = chain.tied_parameters
    assert (tied.parameter, tied.owner, tied.user) == ("transformer.wte.weight", 0, len(chain.layers) - 1)
    assert not chain.cuts


def test_what_cannot_be_recorded_falls_back_with_a_note() -> None:
    """A mixture of experts sends each token where its values say."""
    chain = chain_of(build(config={**LLAMA, "model_type": "mixtral", "num_local_experts": 2}))
    assert not chain.exact
    assert "could not be traced" in chain.note


def test_a_config_file_may_have_keys_of_other_versions(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "key_of_the_past": 1, "pad_token_id": None}))
    assert build(config=str(tmp_path / "config.json")).config.hidden_size == 16

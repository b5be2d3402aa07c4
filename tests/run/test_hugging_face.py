"""Hugging Face models and data from the job to the result, compared with plain PyTorch and with the whole model."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

import potluck
from potluck import seeds
from potluck.data import from_tensors
from potluck.data.token_targets import add_labels_to_inputs
from potluck.errors import UserError
from potluck.job import dump_job, load_job, make
from potluck.loops.parts.batching import FixedBatching
from potluck.model.losses import cross_entropy, model_loss, token_cross_entropy
from potluck.settings import decode_settings
from potluck.task import Task, TaskSettings, build_task

CLASSIFIER = "AutoModelForSequenceClassification"
LLAMA = {
    "model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 20,
}  # fmt: skip
DISTILBERT = {
    "model_type": "distilbert", "dim": 16, "n_layers": 2, "n_heads": 2, "vocab_size": 20, "hidden_dim": 32,
    "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0,
}  # fmt: skip
ROUNDS = 3


pytestmark = pytest.mark.usefixtures("one_thread")


def llama(tied: bool = False) -> Any:
    import transformers

    torch.manual_seed(0)
    table = {key: value for key, value in LLAMA.items() if key != "model_type"}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**table, use_cache=False, tie_word_embeddings=tied))


def distilbert() -> Any:
    import transformers

    torch.manual_seed(0)
    table = {key: value for key, value in DISTILBERT.items() if key != "model_type"}
    return transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig(**table, num_labels=3))


def hugging_face_data(padded: bool, classes: bool) -> Any:
    """A `datasets.Dataset` with input_ids, attention_mask and labels, as a tokenizer and a collator make them."""
    datasets = pytest.importorskip("datasets")
    x = tokens(30)
    mask = torch.ones_like(x)
    if padded:
        mask[::3, 4:] = 0
    labels = x.sum(1) % 3 if classes else x.masked_fill(mask == 0, -100)
    return datasets.Dataset.from_dict(
        {"input_ids": x.tolist(), "attention_mask": mask.tolist(), "labels": labels.tolist()}
    )


def job(recipe: str, devices: int, **settings: Any) -> potluck.Job:
    tables: dict[str, Any] = {
        "task": "tests:unused",
        "recipe": recipe,
        "fleet": {"devices": [{"name": "d", "count": devices, "flops": "20 MFLOP/s"}]},
        "stop": {"rounds": ROUNDS},
        "evaluate": 0,
    }
    return make({**tables, **settings})


ROUNDS_SETTINGS = {"batching": {"size": 10}, "server": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}}


def assert_same_weights(one: Any, other: Any) -> None:
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def tokens(count: int, length: int = 6) -> torch.Tensor:
    return torch.randint(1, 20, (count, length), generator=torch.Generator().manual_seed(4))


def test_targets_that_are_the_tokens_are_shifted_as_the_model_does() -> None:
    """Loss and gradients equal those of the model with `labels`, bit for bit."""
    module, x = llama(), tokens(12)
    labels = x.clone()
    labels[:, 4:] = -100
    task = Task(module, from_tensors(x, labels, x, labels))
    inputs, targets = task.data.train.batch(np.arange(8))
    ours = task.loss(module(inputs), targets)
    theirs = module(x[:8], labels=labels[:8]).loss
    assert torch.equal(ours, theirs)
    weights = list(module.parameters())
    assert all(map(torch.equal, torch.autograd.grad(ours, weights), torch.autograd.grad(theirs, weights)))


def test_targets_that_are_shifted_stay_as_they_are() -> None:
    x = tokens(12, 7)
    task = Task(llama(), from_tensors(x[:, :-1], x[:, 1:], x[:, :-1], x[:, 1:]))
    assert torch.equal(task.data.train.batch(np.arange(3))[1], x[:3, 1:])


WRONG_TARGETS: dict[str, tuple[Any, Any, str]] = {
    "copying": (lambda x: x, token_cross_entropy, "would learn to copy"),
    "neither": (lambda x: x.flip(0), cross_entropy, "it is not clear whether the targets of 'own' are shifted"),
    "another shape": (lambda x: x[:, 0], cross_entropy, "needs a target for each token"),
}


@pytest.mark.parametrize("case", WRONG_TARGETS)
def test_targets_that_do_not_suit_the_loss_are_refused(case: str) -> None:
    change, loss, message = WRONG_TARGETS[case]
    x = tokens(12)
    with pytest.raises(UserError, match=message):
        Task(llama(), from_tensors(x, change(x), x, change(x)), loss)


def test_a_factory_of_a_causal_model_refuses_to_copy() -> None:
    x = tokens(12)
    task = Task(llama, from_tensors(x, x, x, x), token_cross_entropy)
    with pytest.raises(UserError, match="would learn to copy"):
        task.build_module(0)


@pytest.mark.parametrize("kind", ["causal", "classifier"])
def test_one_device_is_a_plain_loop_over_the_models_own_loss(kind: str) -> None:
    """Bit for bit, with inputs that are a dict read from Arrow, padding and -100 among the labels."""
    data = hugging_face_data(padded=True, classes=kind == "classifier")
    module = distilbert() if kind == "classifier" else llama()
    result = potluck.simulate(job("sync-sgd", 1, rounds=ROUNDS_SETTINGS), task=Task(module, (data, data)))
    expected = distilbert() if kind == "classifier" else llama()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9)
    expected.train()
    for count in range(ROUNDS):
        chosen = FixedBatching(size=10).choose_batches(
            np.arange(30), count, None, lambda *name: seeds.child_generator(0, "d", *name)
        )[0]
        optimizer.zero_grad()
        expected(**data.with_format("torch")[chosen.tolist()]).loss.backward()
        optimizer.step()
    assert_same_weights(expected, result.module)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("recipe", ["dynacomm", "duplex"])
def test_layer_by_layer_equals_the_whole_model(recipe: str, padded: bool) -> None:
    data = hugging_face_data(padded, classes=False)
    results = [
        potluck.simulate(job(each, 2, rounds=ROUNDS_SETTINGS), task=Task(llama(), (data, data)))
        for each in (recipe, "sync-sgd")
    ]
    assert_same_weights(results[0].module, results[1].module)


@pytest.mark.parametrize(("padded", "tied"), [(True, False), (False, False), (True, True)])
def test_a_pipeline_equals_the_whole_model(padded: bool, tied: bool) -> None:
    data = hugging_face_data(padded, classes=False)
    pipeline = {"batch": 10, "schedule": {"kind": "gpipe", "micro_batches": 1}}
    results = [
        potluck.simulate(job("gpipe", devices, pipeline=pipeline), task=Task(llama(tied), (data, data)))
        for devices in (1, 3)
    ]
    if padded:
        assert_same_weights(results[0].module, results[1].module)
    # Transformers drops the mask of a batch without padding, the stages apply it: the same up to rounding.
    for one, other in zip(*(result.module.parameters() for result in results if result.module), strict=True):
        torch.testing.assert_close(one, other)


def test_ftpipehd_spreads_a_llama_over_devices() -> None:
    data = hugging_face_data(padded=True, classes=False)
    result = potluck.simulate(job("ftpipehd", 3), task=Task(llama(), (data, data)))
    assert result.status == "done"
    assert result.summary["loss"] < 3.0


TEXT = {"kind": "generated-language", "vocabulary": 20, "block": 6, "train": 24, "test": 8}


def test_a_job_with_adapters_needs_no_python(tmp_path: Path) -> None:
    """The table is read from TOML; only adapters travel; the resolved job builds the same model again."""
    written = {
        "recipe": "sync-sgd",
        "task": {"model": {"kind": "transformers", "config": "llama.json", "lora": {"rank": 2}}, "data": TEXT},
        "fleet": {"devices": [{"name": "d", "flops": "20 MFLOP/s"}]},
        "stop": {"rounds": ROUNDS},
        "evaluate": 0,
    }
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA))
    (tmp_path / "job.toml").write_text(tomli_w.dumps(written))
    loaded = load_job(tmp_path / "job.toml")
    (tmp_path / "llama.json").unlink()
    result = potluck.simulate(make(tomllib.loads(dump_job(loaded)), resolved=True))
    assert result.module is not None
    trained = [parameter for parameter in result.module.parameters() if parameter.requires_grad]
    adapter_bytes = 4 * sum(parameter.numel() for parameter in trained)
    assert adapter_bytes == 4 * 2 * 2 * ((16 + 16) + (16 + 8))  # two blocks, rank 2: q_proj and v_proj
    assert result.summary["bytes"] < 1.05 * 2 * ROUNDS * adapter_bytes + 2_000
    assert loaded.title == "llama on generated-language"


REFUSED_TASKS: dict[str, tuple[dict[str, Any], str]] = {
    "vocabulary too small": ({}, "task.model.config.vocab_size: 20 is less than the data's 30 tokens"),
    "shifted already": ({"loss": "next-token"}, "'next-token' shifts the targets, but those of"),
    "own loss of another model": ({"loss": "model", "model": "mlp"}, "task.loss: 'model' is for Hugging Face models"),
}


@pytest.mark.parametrize("case", REFUSED_TASKS)
def test_a_task_that_does_not_fit_is_refused(case: str) -> None:
    changes, message = REFUSED_TASKS[case]
    data = {**TEXT, "vocabulary": 30} if case == "vocabulary too small" else TEXT
    table = {"model": {"kind": "transformers", "config": LLAMA}, "data": data, **changes}
    with pytest.raises(UserError) as caught:
        build_task(decode_settings(table, TaskSettings, "task"), None).build_module(0)
    assert message in str(caught.value)


def test_the_models_own_loss_gets_the_labels() -> None:
    x = tokens(12)
    data = add_labels_to_inputs(from_tensors(x, x, x, x))
    module, task = llama(), Task(llama, data, model_loss)
    inputs, targets = task.data.train.batch(np.arange(4))
    assert torch.equal(task.loss(module(**inputs), targets), module(x[:4], labels=x[:4]).loss)
    result = potluck.simulate(job("sync-sgd", 2), task=task)
    assert result.summary["loss"] < 3.0

"""Text is trained like any other data, and its loss falls to the floor that the generated language has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import potluck
from potluck.data import info, load, parse
from potluck.data.generated_text import GeneratedLanguageSource
from potluck.errors import UserError
from potluck.job import make

FLEET = {"devices": [{"preset": "laptop"}, {"preset": "pi4", "count": 3}]}


def bigrams(vocabulary: int = 8) -> nn.Module:
    """Learns a language of order 1 exactly: one row of logits for each token."""
    return nn.Embedding(vocabulary, vocabulary)


def _simulate(data: object, **changes: object) -> Any:
    job = {
        "recipe": "fedavg",
        "task": {"model": f"{__name__}:bigrams", "data": data},
        "split": "owner",
        "fleet": FLEET,
        "rounds": {"local": {"lr": 20.0}},
        "stop": {"rounds": 4},
    }
    return potluck.simulate(make(job | changes), threads=0)


def test_the_loss_falls_to_the_floor_and_not_below() -> None:
    name = "generated-language:vocabulary=8,order=1,skew=0,block=16,train=4000,test=1000"
    floor = info(name).loss_floor
    assert floor is not None
    result = _simulate(name, stop={"rounds": 12})
    assert result.status == "done"
    assert result.summary["loss"] == pytest.approx(floor, abs=0.02)
    source = parse(name)
    assert isinstance(source, GeneratedLanguageSource)
    assert result.summary["loss"] > source.ideal_loss()  # the best model, on the same samples


def test_blocks_as_long_as_the_vocabulary_are_not_mistaken() -> None:
    result = _simulate("generated-language:vocabulary=8,block=8,train=400,test=100")
    assert result.status == "done"
    assert 1.3 < result.summary["loss"] < 2.1


def test_a_folder_is_split_by_its_owners(tmp_path: Path) -> None:
    for owner in "abcd":
        (tmp_path / f"{owner}.txt").write_text(f"{owner}{owner}hhgg" * 100, encoding="utf-8")
    alphabet = {"kind": "text", "path": str(tmp_path), "owners": "file", "alphabet": "abcdefgh", "block": 10}
    result = _simulate(alphabet, rounds={"local": {"lr": 4.0, "epochs": 4}}, stop={"rounds": 10})
    assert result.status == "done"
    assert result.summary["loss"] < 1.2


def test_splits_by_label_refuse_text_in_one_line() -> None:
    with pytest.raises(UserError, match="'dirichlet' goes by class labels, and 'generated-language' has none"):
        _simulate("generated-language:train=64,test=16", split="dirichlet")


def test_a_task_of_text_in_python() -> None:
    task = potluck.Task(model=bigrams, data=load("generated-language:vocabulary=8,train=80,test=16,block=9"))
    job = {"recipe": "fedavg", "task": "own", "split": "owner", "fleet": FLEET, "stop": {"rounds": 1}}
    assert potluck.simulate(job, task=task, threads=0).status == "done"


SMALL = {"depth": 1, "width": 8, "heads": 2}
LANGUAGE = "generated-language:vocabulary=8,block=16,train=64,test=16"
TOPICS = "generated-topics:train=64,test=16"


@pytest.mark.parametrize(("model", "data"), [("gpt", LANGUAGE), ("text-encoder", TOPICS)])
def test_models_of_the_zoo_need_no_options_for_their_data(model: str, data: str) -> None:
    result = _simulate(data, task={"model": model, "data": data, "options": SMALL}, split="iid", stop={"rounds": 1})
    assert result.status == "done"


@pytest.mark.parametrize(
    ("model", "data", "options", "problem"),
    [
        ("gpt", "drawn-digits", SMALL, r"task\.model: 'gpt' reads tokens, but 'drawn-digits' is not text"),
        ("mlp", LANGUAGE, {}, r"task\.model: 'mlp' does not read text, .*; choose gpt"),
        ("lenet", TOPICS, {}, r"task\.model: 'lenet' does not read text, .*; choose text-encoder"),
        ("text-encoder", LANGUAGE, SMALL, r"task\.model: 'text-encoder' classifies texts, but .*; choose gpt"),
        ("gpt", TOPICS, SMALL, r"task\.model: 'gpt' predicts next tokens, but .*; choose text-encoder"),
        ("gpt", LANGUAGE, {"vocabulary": 4}, r"task\.options\.vocabulary: .* needs at least 8, not 4"),
        ("gpt", LANGUAGE, {"block": 4}, r"task\.options\.block: .* needs at least 16, not 4"),
    ],
)
@pytest.mark.parametrize("timing_only", [False, True])
def test_models_and_data_that_do_not_fit_are_refused(
    model: str, data: str, options: dict[str, Any], problem: str, timing_only: bool
) -> None:
    job = {"recipe": "fedavg", "task": {"model": model, "data": data, "options": options}, "fleet": FLEET}
    with pytest.raises(UserError, match=problem):
        potluck.simulate(make({**job, "stop": {"rounds": 1}, "timing_only": timing_only}), threads=0)

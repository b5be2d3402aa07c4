"""Metrics through whole runs: in rounds and pipelines, as targets, for the best model, and for learning rates."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import potluck
from potluck.data import from_tensors
from potluck.journal import Scalar, read_journal
from potluck.model.evaluation_score import EvaluationScore
from potluck.model.metrics import resolve_metrics
from potluck.model.weights_file import load_weights

TOKENS, CLASSES = 6, 5
METRICS = ["f1", "accuracy", "top-5", "perplexity", "mean-iou"]
LOOPS: dict[str, dict[str, Any]] = {
    "rounds": {"recipe": "fedavg"},
    "pipeline": {"recipe": "ftpipehd"},
    "stages": {"recipe": "ftpipehd", "pipeline": {"evaluation": "pipeline"}},
}


class _NamedOutputs(nn.Module):
    """A model whose outputs are a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(TOKENS, 12), nn.ReLU())
        self.head = nn.Linear(12, 3)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        hidden = self.body(inputs)
        return {"hidden": hidden, "logits": self.head(hidden)}


def _named_loss(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(outputs["logits"], targets["labels"]) + 0.01 * targets["weight"].mean()


class _Tagger(nn.Module):
    """Scores of each position, classes in dimension 1."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(TOKENS, 12)
        self.norm = nn.BatchNorm1d(12)
        self.last = nn.Linear(12, CLASSES * TOKENS)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.last(torch.relu(self.norm(self.first(inputs))))
        return scores.reshape(-1, CLASSES, TOKENS)


def _data(test: int = 300) -> Any:
    inputs = torch.randn(100 + test, TOKENS, generator=torch.Generator().manual_seed(0))
    targets = (2 + inputs + inputs.roll(1, 1)).long().clamp(0, CLASSES - 1)
    targets[:, 0] = -100
    return from_tensors(inputs[:100], targets[:100], inputs[100:], targets[100:])


def _task(metrics: Any = METRICS, test: int = 300) -> potluck.Task:
    return potluck.Task(_Tagger, _data(test), metrics=metrics)


def _job(loop: str = "rounds", **settings: Any) -> dict[str, Any]:
    fleet = {"devices": [{"preset": "laptop", "count": 2}]}
    return {"task": "own", "fleet": fleet, "stop": {"rounds": 6}, "evaluate": 1, **LOOPS[loop], **settings}


def _simulate(job: dict[str, Any], task: potluck.Task | None = None, **options: Any) -> potluck.Result:
    return potluck.simulate(job, task=task or _task(), threads=0, **options)


def _plain_evaluation(module: nn.Module, metrics: Any = METRICS) -> dict[str, float]:
    data, score = _data().test, EvaluationScore(nn.functional.cross_entropy, resolve_metrics(metrics))
    with torch.no_grad():
        score.add_batch(module.eval()(data.x), data.y)
    return score.as_metrics()


@pytest.mark.parametrize("loop", LOOPS)
def test_metrics_equal_a_plain_evaluation_of_the_saved_model(loop: str, tmp_path: Path) -> None:
    result = _simulate(_job(loop), folder=tmp_path / "run")
    saved = _Tagger()
    load_weights(saved, tmp_path / "run")
    expected = _plain_evaluation(saved)
    assert list(result.summary["metrics"]) == ["loss", *METRICS]
    assert result.summary["metrics"] == pytest.approx(expected, rel=1e-5)
    last = {
        record.name: record.value
        for record in read_journal(tmp_path / "run" / "journal.jsonl")
        if isinstance(record, Scalar) and record.name.startswith("test_")
    }
    assert last == {f"test_{name}": value for name, value in result.summary["metrics"].items()}


def test_structured_outputs_and_targets_are_measured_alike_in_every_loop() -> None:
    inputs = torch.randn(80, TOKENS, generator=torch.Generator().manual_seed(0))
    targets = {"labels": (inputs[:, :2] > 0).sum(1), "weight": inputs[:, 0]}
    half = (
        {name: value[:40] for name, value in targets.items()},
        {name: value[40:] for name, value in targets.items()},
    )
    data = from_tensors(inputs[:40], half[0], inputs[40:], half[1])
    task = potluck.Task(_NamedOutputs, data, _named_loss, ["accuracy", "f1"])
    for loop in LOOPS:
        result = _simulate(_job(loop), task)
        assert result.module is not None
        with torch.no_grad():
            outputs = result.module.eval()(inputs[40:])
        right = (outputs["logits"].argmax(1) == half[1]["labels"]).float().mean()
        assert result.summary["metrics"]["accuracy"] == pytest.approx(float(right))
        assert result.summary["metrics"]["loss"] == pytest.approx(float(_named_loss(outputs, half[1])), rel=1e-5)


@pytest.mark.parametrize("loop", LOOPS)
def test_the_best_model_is_kept_and_found_again_after_an_interruption(loop: str, tmp_path: Path) -> None:
    job = _job(loop, best="accuracy", checkpoint=3, stop={"rounds": 8}, seed=3)
    whole = _simulate(job, folder=tmp_path / "whole")
    seen: list[int] = []
    _simulate(job, folder=tmp_path / "cut", watch=lambda *_: seen.append(1), stopping=lambda: len(seen) >= 5)
    resumed = potluck.resume(tmp_path / "cut", task=_task(), threads=0)
    assert resumed.summary["best"] == whole.summary["best"]
    accuracies = [
        (record.value, record.fields["round"])
        for record in read_journal(tmp_path / "whole" / "journal.jsonl")
        if isinstance(record, Scalar) and record.name == "test_accuracy"
    ]
    best = whole.summary["best"]
    assert (best["metric"], best["value"]) == ("accuracy", max(accuracies)[0])
    assert best["round"] == next(round for value, round in accuracies if value == best["value"])
    for folder in ("whole", "cut"):
        saved = _Tagger()
        load_weights(saved, tmp_path / folder / "best.safetensors")
        assert _plain_evaluation(saved)["accuracy"] == pytest.approx(best["value"])


def test_a_best_model_that_is_newer_than_the_checkpoint_stays_the_best(tmp_path: Path) -> None:
    job = _job(best="accuracy", checkpoint=3, stop={"rounds": 8}, seed=3)
    whole = _simulate(job, folder=tmp_path / "run")
    first, _, _ = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert int(first.stem) < whole.summary["best"]["round"]
    for later in (tmp_path / "run" / "checkpoints").iterdir():  # as if the process had been killed before the last one
        if later != first:
            later.unlink()
    resumed = potluck.resume(tmp_path / "run", task=_task(), threads=0)
    assert resumed.summary["best"] == whole.summary["best"]
    saved = _Tagger()
    load_weights(saved, tmp_path / "run" / "best.safetensors")
    assert _plain_evaluation(saved)["accuracy"] == pytest.approx(whole.summary["best"]["value"])


def test_the_best_model_is_kept_by_the_first_metric_and_only_if_the_task_lists_some(tmp_path: Path) -> None:
    first = _simulate(_job(), folder=tmp_path / "listed")
    assert first.summary["best"]["metric"] == "f1"
    plain = _simulate(_job(), _task(()), folder=tmp_path / "plain")
    none = _simulate(_job(best="none"), folder=tmp_path / "none")
    for result in (plain, none, _simulate(_job())):
        assert "best" not in result.summary
    assert not list(tmp_path.glob("[np]*/best.safetensors"))
    assert "metrics" not in plain.summary


@pytest.mark.parametrize("loop", LOOPS)
def test_a_target_is_reached_by_direction(loop: str) -> None:
    for target, reached in (({"perplexity": 50.0}, True), ({"perplexity": 1.01}, False), ({"top-5": 0.999}, True)):
        result = _simulate(_job(loop, stop={"rounds": 5, "metrics": target}))
        (name,) = target
        assert (f"{name} " in result.reason and "reached the target of" in result.reason) == reached, result.reason


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"stop": {"rounds": 1, "metrics": {"perplexty": 2.0}}}, r"stop\.metrics\.perplexty: .* 'perplexity'"),
        ({"stop": {"rounds": 1, "metrics": {"rmse": 2.0}}}, r"stop\.metrics\.rmse: .*; add it to task\.metrics"),
        ({"best": "rmse"}, "best: the task has no metric 'rmse', only loss, f1, accuracy"),
        ({"rounds": {"schedule": {"kind": "plateau", "metric": "r2"}}}, r"rounds\.schedule\.metric: .*'r2'"),
        ({"stop": {"rounds": 1, "metrics": {"accuracy": 95.0}}}, r"stop\.metrics\.accuracy: is 95, .* between 0 and 1"),
        ({"stop": {"rounds": 1, "metrics": {"perplexity": 0.5}}}, r"stop\.metrics\.perplexity: is 0\.5"),
        ({"stop": {"rounds": 1, "accuracy": 0.9, "metrics": {"accuracy": 0.9}}}, "are the same target"),
    ],
)
def test_a_metric_that_the_task_does_not_have_is_refused_before_the_run(settings: Any, said: str) -> None:
    with pytest.raises(potluck.UserError, match=said) as refused:
        _simulate(_job(**settings))
    assert "\n" not in str(refused.value)


def test_a_target_accuracy_is_refused_without_class_labels() -> None:
    inputs = torch.randn(20, 3)
    task = potluck.Task(
        lambda: nn.Linear(3, 1), from_tensors(inputs, inputs[:, :1], inputs, inputs[:, :1]), nn.functional.mse_loss
    )
    for loop in LOOPS:
        with pytest.raises(potluck.UserError, match=r"stop\.accuracy: the task has no accuracy"):
            _simulate(_job(loop, stop={"rounds": 1, "accuracy": 0.9}), task)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_metric_that_cannot_be_computed_is_refused_before_the_run(loop: str) -> None:
    inputs = torch.randn(20, 3)
    task = potluck.Task(lambda: nn.Linear(3, 1), (inputs, 5000 + inputs[:, :1]), nn.functional.mse_loss, ["accuracy"])
    with pytest.raises(potluck.UserError, match="metric 'accuracy': the targets are numbers"):
        _simulate(_job(loop), task)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_empty_test_set_trains_without_evaluation(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    result = _simulate(_job(loop), _task(test=0))
    assert (result.status, result.summary["rounds"], result.summary["loss"]) == ("done", 6, None)
    assert caplog.messages == ["data set 'own' has no test samples: the model is not evaluated"]
    with pytest.raises(potluck.UserError, match="best: data set 'own' has no test samples"):
        _simulate(_job(loop, best="f1"), _task(test=0))


def _plateau(loop: str, **options: Any) -> dict[str, Any]:
    plateau = {"kind": "plateau", "metric": "accuracy", "patience": 0, "threshold": 0.05, "factor": 0.5, **options}
    if loop == "rounds":
        return {"rounds": {"local_schedule": plateau, "schedule": plateau}}
    return {"pipeline": {**LOOPS[loop].get("pipeline", {}), "lr_schedule": plateau}}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_plateau_schedule_acts_and_resumes_exactly(loop: str, tmp_path: Path) -> None:
    job = _job(loop, checkpoint=4, stop={"rounds": 9}, **_plateau(loop))
    whole = _simulate(job, folder=tmp_path / "whole")
    seen: list[int] = []
    _simulate(job, folder=tmp_path / "cut", watch=lambda *_: seen.append(1), stopping=lambda: len(seen) >= 6)
    resumed = potluck.resume(tmp_path / "cut", task=_task(), threads=0)
    assert resumed.summary["metrics"] == whole.summary["metrics"]
    assert _state(resumed) == _state(whole)
    records = [json.loads(line) for line in (tmp_path / "whole" / "journal.jsonl").read_text().splitlines()]
    drops = [record["value"] for record in records if record["name"].endswith("schedule_factor")]
    assert drops[0] == 0.5
    constant = _simulate(_job(loop, stop={"rounds": 9}))
    assert _state(constant) != _state(whole)


def _state(result: potluck.Result) -> bytes:
    assert result.module is not None
    return b"".join(value.numpy().tobytes() for value in result.module.state_dict().values())


_LLAMA = {
    "model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_hidden_layers": 2, "intermediate_size": 32,
}  # fmt: skip


def test_the_perplexity_of_a_language_model_is_the_exponential_of_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = {"kind": "transformers", "auto": "AutoModelForCausalLM", "config": _LLAMA}
    task = {"model": model, "data": "generated-language", "metrics": ["perplexity", "accuracy"]}
    settings: dict[str, Any] = {"task": task, "stop": {"rounds": 2, "metrics": {"perplexity": 1000.0}}}
    result = potluck.simulate(_job(**settings), threads=0)
    assert "perplexity" in result.reason
    assert result.summary["metrics"]["perplexity"] == pytest.approx(math.exp(result.summary["loss"]), rel=1e-4)
    with pytest.raises(potluck.UserError, match=r"task\.loss: 'model' shifts the targets"):
        potluck.simulate(_job(task={**task, "loss": "model"}), threads=0)

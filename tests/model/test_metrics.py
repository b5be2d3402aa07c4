from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from typing import Any

import pytest
import torch
import torchmetrics
import torchmetrics.classification as classification
from torch import Tensor
from torch.nn import functional
from torchmetrics import functional as reference

from potluck.errors import UserError
from potluck.model.evaluation_score import EvaluationScore
from potluck.model.metrics import Metric, TaskMetrics, resolve_metrics

CLASS_METRICS = ["accuracy", "top-5", "perplexity", "f1", "mean-iou"]


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _sum_loss(outputs: Any, targets: Any) -> Tensor:
    return torch.as_tensor(outputs).sum()


def _score(metrics: Any, batches: list[tuple[Any, Any]], loss: Any = functional.cross_entropy) -> dict[str, float]:
    score = EvaluationScore(loss, resolve_metrics(metrics))
    for outputs, targets in batches:
        score.add_batch(outputs, targets)
    return score.as_metrics()


def _cut(outputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Uneven batches, the last with one sample."""
    return [(outputs[a:b], targets[a:b]) for a, b in ((0, 7), (7, len(targets) - 1), (len(targets) - 1, len(targets)))]


@pytest.mark.parametrize("shape", [(), (6,), (4, 5)], ids=["labels", "tokens", "pixels"])
def test_class_metrics_equal_those_of_torchmetrics_however_the_data_is_batched(shape: tuple[int, ...]) -> None:
    scores = torch.randn(20, 8, *shape, generator=_generator())
    labels = torch.randint(0, 7, (20, *shape), generator=_generator(1))  # the last class never occurs
    values = _score(CLASS_METRICS, _cut(scores, labels))
    assert values == pytest.approx(
        {
            "loss": float(functional.cross_entropy(scores, labels)),
            "accuracy": float(reference.accuracy(scores, labels, "multiclass", num_classes=8, average="micro")),
            "top-5": float(reference.accuracy(scores, labels, "multiclass", num_classes=8, top_k=5, average="micro")),
            "perplexity": float(functional.cross_entropy(scores, labels).exp()),
            "f1": float(reference.f1_score(scores, labels, "multiclass", num_classes=8, average="macro")),
            "mean-iou": float(reference.jaccard_index(scores, labels, "multiclass", num_classes=8)),
        },
        rel=1e-5,
    )


def test_number_metrics_equal_those_of_torchmetrics_far_from_zero() -> None:
    targets = 1000 + torch.randn(50, 3, generator=_generator())
    outputs = targets + 0.3 * torch.randn(50, 3, generator=_generator(1))
    values = _score(["mae", "rmse", "r2"], _cut(outputs, targets), functional.mse_loss)
    assert values["mae"] == pytest.approx(float((outputs - targets).abs().mean()), rel=1e-5)
    assert values["rmse"] == pytest.approx(float((outputs - targets).square().mean().sqrt()), rel=1e-5)
    assert values["r2"] == pytest.approx(float(reference.r2_score(outputs.double(), targets.double())), rel=1e-6)


def test_one_output_per_sample_is_compared_with_targets_without_that_dimension() -> None:
    outputs, targets = torch.tensor([[1.0], [3.0]]), torch.tensor([2.0, 2.0])
    assert _score(["mae"], [(outputs, targets)], lambda o, t: o.mean())["mae"] == 1.0


def test_a_binary_logit_is_measured_on_the_positive_class() -> None:
    logits, labels = torch.randn(40, 1, generator=_generator()), torch.randint(0, 2, (40,), generator=_generator(1))
    loss = lambda outputs, targets: functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.float())  # noqa: E731
    values = _score(["accuracy", "f1", "mean-iou"], _cut(logits, labels), loss)
    assert values["accuracy"] == pytest.approx(float(reference.accuracy(logits[:, 0].sigmoid(), labels, "binary")))
    assert values["f1"] == pytest.approx(float(reference.f1_score(logits[:, 0].sigmoid(), labels, "binary")))
    assert values["mean-iou"] == pytest.approx(float(reference.jaccard_index(logits[:, 0].sigmoid(), labels, "binary")))


def test_ignored_targets_do_not_count() -> None:
    scores, labels = torch.randn(6, 5, 4, generator=_generator()), torch.randint(0, 5, (6, 4), generator=_generator(1))
    labels[2:4] = -100
    labels[0, 1:] = -100
    kept = labels != -100
    rows = scores.movedim(1, -1)[kept]
    values = _score(CLASS_METRICS, [(scores[:1], labels[:1]), (scores[1:], labels[1:])])
    assert values["accuracy"] == pytest.approx(float((rows.argmax(1) == labels[kept]).float().mean()))
    assert values["perplexity"] == pytest.approx(float(functional.cross_entropy(rows, labels[kept]).exp()))


def test_classes_last_are_found_where_only_that_fits_and_where_the_loss_says_so() -> None:
    scores, labels = torch.randn(3, 4, 9, generator=_generator()), torch.randint(0, 9, (3, 4), generator=_generator(1))
    expected = float((scores.argmax(-1) == labels).float().mean())

    def loss(outputs: Any, targets: Any) -> Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    assert _score(["accuracy"], [(scores, labels)], loss)["accuracy"] == pytest.approx(expected)
    square, labels = torch.randn(3, 4, 4, generator=_generator()), torch.randint(0, 4, (3, 4), generator=_generator(1))
    loss.classes_last = True  # type: ignore[attr-defined]
    expected = float((square.argmax(-1) == labels).float().mean())
    assert _score(["accuracy"], [(square, labels)], loss)["accuracy"] == pytest.approx(expected)


class _ModelOutput(OrderedDict[str, Any]):
    """As Hugging Face models return them."""

    @property
    def logits(self) -> Any:
        return self["logits"]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda scores: (scores, torch.zeros(2)),
        lambda scores: (torch.tensor(1.0), scores),
        lambda scores: {"logits": scores, "more": scores + 1},
        lambda scores: _ModelOutput(loss=torch.tensor(1.0), logits=scores),
    ],
    ids=["tuple", "loss first", "dict", "ModelOutput"],
)
def test_predictions_are_found_in_structured_outputs_and_labels_in_structured_targets(wrap: Any) -> None:
    scores, labels = torch.randn(9, 4, generator=_generator()), torch.randint(0, 4, (9,), generator=_generator(1))
    targets = {"labels": labels, "mask": torch.ones(9)}
    values = _score(["accuracy"], [(wrap(scores), targets)], lambda outputs, targets: torch.tensor(0.5))
    assert values == {"loss": 0.5, "accuracy": pytest.approx(float((scores.argmax(1) == labels).float().mean()))}


def test_a_function_is_averaged_by_samples_and_a_torchmetrics_metric_accumulates_afresh() -> None:
    def spread(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.max(1).values.mean()

    spread.higher_is_better = False  # type: ignore[attr-defined]
    f1 = classification.MulticlassF1Score(4, average="macro")
    f1.update(torch.eye(4), torch.tensor([1, 2, 3, 0]))  # left over from elsewhere
    scores, labels = torch.randn(30, 4, generator=_generator()), torch.randint(0, 4, (30,), generator=_generator(1))
    metrics = resolve_metrics([spread, f1, Metric("peak", spread, higher_is_better=True)])
    assert dict(metrics.directions) == {"loss": False, "spread": False, "multiclass-f1-score": True, "peak": True}
    for _ in range(2):
        score = EvaluationScore(functional.cross_entropy, metrics)
        for outputs, targets in _cut(scores, labels):
            score.add_batch(outputs, targets)
        values = score.as_metrics()
        assert values["spread"] == values["peak"] == pytest.approx(float(scores.max(1).values.mean()))
        expected = float(reference.f1_score(scores, labels, "multiclass", num_classes=4, average="macro"))
        assert values["multiclass-f1-score"] == pytest.approx(expected)


def test_without_metrics_there_is_accuracy_only_for_class_labels() -> None:
    labels = torch.tensor([0, 1, 1])
    scores = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert _score(None, [(scores, labels)])["accuracy"] == 2 / 3
    assert list(_score(None, [(scores, scores)], functional.mse_loss)) == ["loss"]
    assert EvaluationScore(functional.cross_entropy).as_metrics() == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["acuracy"], r"did you mean 'accuracy'\?"),
        ([lambda outputs, targets: 0.0], "does not say whether higher is better"),
        (["accuracy", "accuracy"], "two metrics are called 'accuracy'"),
        ("accuracy", "must be a list of metrics"),
        ([3], "3 is no metric"),
        ([torchmetrics.MetricCollection([classification.MulticlassAccuracy(3)])], "list them one by one"),
        (["nowhere.at_all:metric"], "cannot import 'nowhere.at_all'"),
    ],
)
def test_wrong_metrics_are_refused_in_one_line(given: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        resolve_metrics(given)
    assert str(refused.value).startswith("task.metrics: ")
    assert "\n" not in str(refused.value)


def test_metrics_that_do_not_fit_the_outputs_say_so() -> None:
    with pytest.raises(
        UserError,
        match=r"metric 'accuracy': outputs of shape \(4, 2\) have no class scores for targets of shape \(4, 3\)",
    ):
        _score(["accuracy"], [(torch.zeros(4, 2), torch.zeros(4, 3))], _sum_loss)
    numbers = (torch.zeros(3, 1), torch.tensor([[5000.0], [4900.0], [5100.0]]))
    for name in ("accuracy", "f1", "perplexity", "mean-iou"):
        with pytest.raises(UserError, match=f"metric '{name}': the targets are numbers, .*; use mae, rmse or r2"):
            _score([name], [numbers], _sum_loss)
    with pytest.raises(UserError, match="metric 'multiclass-accuracy': torchmetrics refuses"):
        _score([classification.MulticlassAccuracy(7)], [(torch.zeros(4, 3), torch.zeros(4).long())], _sum_loss)
    with pytest.raises(UserError, match="cannot be compared"):
        _score(["mae"], [(torch.zeros(4, 2), torch.zeros(4))], _sum_loss)
    with pytest.raises(UserError, match="must return one number"):
        _score([Metric("own", lambda o, t: o, higher_is_better=True)], [(torch.zeros(4, 2), torch.zeros(4))], _sum_loss)


def test_values_of_a_peer_must_be_those_of_the_listed_metrics() -> None:
    metrics = resolve_metrics(["f1", "perplexity"])
    assert metrics.values_refusal({"f1": 0.5, "perplexity": 3.0}) is None
    assert metrics.values_refusal({"f1": float("nan"), "perplexity": float("inf")}) is None
    assert metrics.values_refusal({"f1": 1.5, "perplexity": 3.0}) == "it measured f1 1.5"
    assert "not f1, perplexity" in str(metrics.values_refusal({"f1": 0.5, "more": 1.0}))
    assert TaskMetrics().values_refusal({}) is None


def test_torchmetrics_is_not_imported_unless_the_user_does() -> None:
    code = (
        "import sys; from potluck.model.metrics import resolve_metrics; resolve_metrics(['f1']);"
        "print([name for name in ('torchmetrics', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss

from potluck.data import from_tensors
from potluck.model import evaluation_score
from potluck.model.evaluation_score import ClassLossRecorder, iter_evaluation_batches

_SCORES = torch.tensor([[2.0, 0.0, 1.0], [0.5, 0.5, 0.0], [0.0, 3.0, 0.0], [1.0, 1.0, 1.0]], requires_grad=True)
_LABELS = torch.tensor([0, 1, 1, 0])


def test_recording_keeps_the_loss_and_averages_each_class_over_all_batches() -> None:
    recorder = ClassLossRecorder(cross_entropy)
    loss = recorder(_SCORES[:3], _LABELS[:3])
    assert torch.equal(loss, cross_entropy(_SCORES[:3], _LABELS[:3]))
    assert loss.requires_grad
    recorder(_SCORES[3:], _LABELS[3:])
    losses = cross_entropy(_SCORES, _LABELS, reduction="none").tolist()
    assert recorder.mean_losses == {
        0: pytest.approx((losses[0] + losses[3]) / 2),
        1: pytest.approx((losses[1] + losses[2]) / 2),
    }


def test_a_loss_without_classes_records_nothing() -> None:
    recorder = ClassLossRecorder(mse_loss)
    recorder(torch.zeros(4, 1), torch.ones(4, 1))
    assert recorder.mean_losses == {}


def test_evaluation_batches_are_smaller_where_outputs_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_score, "_MAX_OUTPUTS", 100)
    texts, labels = torch.zeros(10, 4), torch.zeros(10, dtype=torch.int64)
    tokens = from_tensors(texts, texts.long(), texts, texts.long()).test
    sizes = [
        len(inputs) for inputs, _ in iter_evaluation_batches(tokens, lambda inputs: torch.zeros(len(inputs), 4, 8))
    ]
    assert sizes == [3, 3, 3, 1]
    plain = from_tensors(texts, labels, texts, labels).test
    assert [len(inputs) for inputs, _ in iter_evaluation_batches(plain, lambda inputs: pytest.fail("not run"))] == [10]

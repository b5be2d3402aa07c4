from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss

from potluck.model.evaluation_score import ClassLossRecorder

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

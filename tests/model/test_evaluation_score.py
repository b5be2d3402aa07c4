from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss

from potluck.model.evaluation_score import ClassLossRecorder

_SCORES = torch.tensor([[2.0, 0.0, 1.0], [0.5, 0.5, 0.0], [0.0, 3.0, 0.0], [1.0, 1.0, 1.0]], requires_grad=True)
_LABELS = torch.tensor([0, 1, 1, 0])


def test_the_loss_is_what_it_was_and_the_mean_of_each_class_is_noted_over_all_batches() -> None:
    noted = ClassLossRecorder(cross_entropy)
    loss = noted(_SCORES[:3], _LABELS[:3])
    assert torch.equal(loss, cross_entropy(_SCORES[:3], _LABELS[:3]))
    assert loss.requires_grad
    noted(_SCORES[3:], _LABELS[3:])
    each = cross_entropy(_SCORES, _LABELS, reduction="none").tolist()
    assert noted.mean_losses == {0: pytest.approx((each[0] + each[3]) / 2), 1: pytest.approx((each[1] + each[2]) / 2)}


def test_what_has_no_classes_has_none() -> None:
    noted = ClassLossRecorder(mse_loss)
    noted(torch.zeros(4, 1), torch.ones(4, 1))
    assert noted.mean_losses == {}

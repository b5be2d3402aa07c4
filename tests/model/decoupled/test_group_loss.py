"""The training loss of devices: expected class counts of balanced batches, and the loss weighted by them."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from potluck.model.decoupled import GroupLoss, expected_class_counts

LABELS = np.arange(100) % 10


def test_expected_counts_match_an_epoch() -> None:
    assert expected_class_counts(LABELS, {2, 3}) == {label: 10 if label in (2, 3) else 2 for label in range(10)} | {
        label: round(10 * 20 / 80) for label in range(10) if label not in (2, 3)
    }
    assert expected_class_counts(LABELS, {0}, np.array([0, 10, 20, 1])) == {0: 3, 1: 1}


def test_the_loss_is_a_softmax_over_own_classes_and_other() -> None:
    outputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([3, 0, 7, 1])
    loss = GroupLoss([(3, 1), (7,)], 8)
    expected = F.cross_entropy(outputs[:, :3], torch.tensor([0, 2, 2, 1])) + F.cross_entropy(
        outputs[:, 3:], torch.tensor([1, 1, 0, 1])
    )
    torch.testing.assert_close(loss(outputs, labels), expected)


def test_own_and_other_classes_weigh_equally_for_any_mixture() -> None:
    """With the weights, doubling the samples of other classes changes nothing."""
    outputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 3, 4, 5])
    expected = GroupLoss([(0, 1)], 6, {0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1})(outputs, labels)
    doubled = torch.cat([outputs, outputs[2:]]), torch.cat([labels, labels[2:]])
    twice = GroupLoss([(0, 1)], 6, {0: 1, 1: 1, 2: 2, 3: 2, 4: 2, 5: 2})(*doubled)
    torch.testing.assert_close(expected, twice)


def test_a_stream_is_balanced_within_each_mini_batch() -> None:
    outputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 3, 4, 5])
    known = GroupLoss([(0, 1)], 6, dict.fromkeys(range(6), 1))(outputs, labels)
    unknown = GroupLoss([(0, 1)], 6, per_batch=True)
    torch.testing.assert_close(unknown(outputs, labels), known)
    torch.testing.assert_close(unknown(outputs[:2], labels[:2]), F.cross_entropy(outputs[:2], labels[:2]))

"""What devices train on: balanced batches, the loss, and classes known only by their statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from potluck.errors import DataError
from potluck.model.decoupled import (
    GroupLoss,
    balanced_batches,
    describe_classes,
    draw_features,
    expected_class_counts,
    pool_statistics,
    trunk_features,
)
from potluck.model.decoupled.class_statistics import ClassStatistics
from tests.model.decoupled.networks import samples, small_grouped

LABELS = np.arange(100) % 10


def test_an_epoch_has_all_own_samples_and_as_many_others() -> None:
    batches = list(balanced_batches(LABELS, {2, 3}, 8, np.random.default_rng(0)))
    used = np.concatenate(batches)
    assert len(used) == len(set(used)) == 40
    assert set(np.flatnonzero(np.isin(LABELS, [2, 3]))) <= set(used)
    assert [len(batch) for batch in batches] == [8] * 5


def test_the_others_change_from_epoch_to_epoch_and_follow_the_seed() -> None:
    rng, again = np.random.default_rng(0), np.random.default_rng(0)
    first, second = (np.concatenate(list(balanced_batches(LABELS, {1}, 8, rng))) for _ in range(2))
    assert set(first) != set(second)
    assert np.array_equal(first, np.concatenate(list(balanced_batches(LABELS, {1}, 8, again))))


def test_a_device_uses_only_what_it_holds() -> None:
    held = np.arange(0, 100, 3)
    used = np.concatenate(list(balanced_batches(LABELS, {0, 1}, 8, np.random.default_rng(0), held)))
    assert set(used) <= set(held)
    with pytest.raises(DataError, match=r"no sample of the classes \[5\]"):
        list(balanced_batches(LABELS, {5}, 8, np.random.default_rng(0), np.array([0, 1])))


def test_counts_say_what_an_epoch_has() -> None:
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


def test_own_and_other_weigh_alike_however_samples_are_mixed() -> None:
    """With the weights, doubling the others' samples changes nothing."""
    outputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 3, 4, 5])
    once = GroupLoss([(0, 1)], 6, {0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1})(outputs, labels)
    others = torch.cat([outputs, outputs[2:]]), torch.cat([labels, labels[2:]])
    twice = GroupLoss([(0, 1)], 6, {0: 1, 1: 1, 2: 2, 3: 2, 4: 2, 5: 2})(*others)
    torch.testing.assert_close(once, twice)


def test_drawn_features_have_the_statistics_of_the_class() -> None:
    draws = torch.Generator().manual_seed(0)
    mixing = torch.randn(12, 12, generator=draws)
    features = (torch.randn(4000, 12, generator=draws) @ mixing + 40).view(4000, 3, 2, 2)
    labels = torch.zeros(4000, dtype=torch.int64)
    for rank, tolerance in ((0, 0.0), (12, 0.1)):
        (found,) = describe_classes(features, labels, rank=rank).values()
        drawn = found.sample_features(20_000, draws)
        assert drawn.shape[1:] == (3, 2, 2)
        torch.testing.assert_close(drawn.mean(dim=0), features.mean(dim=0), rtol=0.01, atol=0.1)
        torch.testing.assert_close(drawn.var(dim=0), features.var(dim=0), rtol=0.1, atol=0.1)
        if tolerance:
            torch.testing.assert_close(drawn.flatten(1).T.cov(), features.flatten(1).T.cov(), rtol=tolerance, atol=1.0)


def test_directions_are_the_same_from_few_samples_and_from_many() -> None:
    """Two ways to find them, by which is smaller: the samples or the features."""
    draws = torch.Generator().manual_seed(2)
    wide = torch.randn(30, 40, generator=draws)
    labels = torch.zeros(30, dtype=torch.int64)
    found = [
        describe_classes(features, labels, rank=3)[0].directions.flatten(1)[:, :20]
        for features in (torch.cat([wide[:, :20], torch.zeros(30, 20)], dim=1), wide[:, :20])
    ]
    torch.testing.assert_close(found[0].T @ found[0], found[1].T @ found[1], rtol=1e-3, atol=1e-4)


def test_only_a_few_numbers_leave_a_device_and_none_for_tiny_classes() -> None:
    features, labels = torch.rand(60, 5), torch.tensor([0] * 50 + [1] * 10)
    found = describe_classes(features, labels, rank=2)
    assert set(found) == {0}
    assert found[0].nbytes == 4 * 5 * (1 + 1 + 2)
    assert float(found[0].sample_features(1000, torch.Generator()).min()) >= float(features[:50].min())


def test_pooled_statistics_are_those_of_all_samples() -> None:
    draws = torch.Generator().manual_seed(1)
    features = torch.randn(300, 7, generator=draws) + torch.arange(300)[:, None] / 100
    labels = torch.zeros(300, dtype=torch.int64)
    for rank in (0, 2):
        parts = [describe_classes(features[:100], labels[:100], rank=rank)]
        parts += [describe_classes(features[100:], labels[100:], rank=rank), {}]
        together: ClassStatistics = pool_statistics(parts)[0]
        assert together.count == 300
        torch.testing.assert_close(together.mean, features.mean(dim=0))
        total = together.variance + together.directions.square().sum(dim=0)
        torch.testing.assert_close(total, features.var(dim=0), rtol=0.05, atol=0.05)


def test_negatives_are_drawn_evenly_from_the_others() -> None:
    features, labels = torch.rand(90, 4), torch.arange(90) % 3
    statistics = describe_classes(features, labels)
    drawn, found = draw_features(statistics, {1}, 11, torch.Generator().manual_seed(0))
    assert len(drawn) == len(found) == 11
    assert sorted(torch.bincount(found, minlength=3).tolist()) == [0, 5, 6]
    again, _ = draw_features(statistics, {1}, 11, torch.Generator().manual_seed(0))
    assert torch.equal(drawn, again)
    with pytest.raises(DataError, match="nobody has described"):
        draw_features(statistics, {0, 1, 2}, 5, torch.Generator())


def test_features_are_what_the_trunk_makes_in_evaluation() -> None:
    grouped = small_grouped(depth=2)
    inputs, labels = samples(20)
    features, found = trunk_features(grouped.trunk, [(inputs[:8], labels[:8]), (inputs[8:], labels[8:])])
    assert torch.equal(features, grouped.trunk.eval()(inputs))
    assert torch.equal(found, labels)

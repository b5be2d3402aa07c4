from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from potluck.data.data_splits import Split
from potluck.data.overlapping_splits import ClassGroupSplit, ReplicatedSplit
from potluck.errors import DataError, SettingError
from potluck.planning.groups import assign_round_robin
from potluck.settings import decode_settings, encode_settings

LABELS = np.repeat(np.arange(6), 20)


def rng() -> np.random.Generator:
    return np.random.default_rng(4)


def test_every_device_may_hold_every_sample() -> None:
    shards = ReplicatedSplit().assign_samples(LABELS, 3, rng())
    assert all(np.array_equal(shard, np.arange(120)) for shard in shards)


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 7])
def test_own_classes_are_assigned_once_and_other_samples_are_added(devices: int) -> None:
    split = ClassGroupSplit(groups=3, rest=0.5)
    shards = split.assign_samples(LABELS, devices, rng())
    own_samples = []
    for group_indices, shard in zip(assign_round_robin(devices, 3), shards, strict=True):
        is_own = np.isin(LABELS[shard] // 2, group_indices)
        own_samples.append(shard[is_own])
        assert (~is_own).sum() == min(round(0.5 * is_own.sum()), (~np.isin(LABELS // 2, group_indices)).sum())
        assert len(np.unique(shard)) == len(shard)
    assert np.array_equal(np.sort(np.concatenate(own_samples)), np.arange(120))


def test_groups_may_be_given() -> None:
    first, second = ClassGroupSplit(groups=((0, 5), (1, 2, 3, 4)), rest=0).assign_samples(LABELS, 2, rng())
    assert set(LABELS[first]) == {0, 5}
    assert set(LABELS[second]) == {1, 2, 3, 4}


def test_named_devices_may_have_many_few_or_common_groups() -> None:
    split = ClassGroupSplit(groups=3, rest=0, held={"b": (0, 2), "c": (2,)}).for_devices(["a", "b", "c"])
    first, second, third = split.assign_samples(LABELS, 3, rng())
    assert set(LABELS[first]) == {0, 1, 2, 3, 4, 5}  # the only device without configured groups gets all of them
    assert set(LABELS[second]) == {0, 1, 4, 5}
    assert set(LABELS[third]) == {4, 5}
    assert np.array_equal(np.sort(np.concatenate([first, second, third])), np.arange(120))


def test_samples_of_an_unassigned_group_count_as_other_samples() -> None:
    split = ClassGroupSplit(groups=3, rest=10.0).for_trained_groups(((0, 1), (2, 3), (4, 5)), {"a": (0,), "b": (2,)})
    for shard in split.assign_samples(LABELS, 2, rng()):
        assert {2, 3} <= set(LABELS[shard])


def test_the_split_must_agree_with_the_trained_groups() -> None:
    groups = ((0, 5), (1, 2, 3, 4))
    for setting in (None, 2, groups):
        assert ClassGroupSplit(groups=setting).for_trained_groups(groups, {"a": (0,)}).groups == groups
    for setting in (3, ((0, 1), (2, 3, 4, 5))):
        with pytest.raises(SettingError, match=r"split.groups: devices train 2 groups"):
            ClassGroupSplit(groups=setting).for_trained_groups(groups, {"a": (0,)})
    with pytest.raises(SettingError, match=r"split.held: the split follows"):
        ClassGroupSplit(held={"a": (0,)}).for_trained_groups(groups, {"a": (0,)})


def test_a_group_without_samples_is_refused() -> None:
    with pytest.raises(DataError, match="no sample of the classes"):
        ClassGroupSplit(groups=((0, 1), (2,), (3, 4, 5))).assign_samples(LABELS[LABELS != 2], 3, rng())


@pytest.mark.parametrize("table", ["everything", {"kind": "class-groups", "groups": [[0, 1], [2]], "rest": 2.0}])
def test_overlapping_splits_survive_encoding_and_decoding(table: Any) -> None:
    split = decode_settings(table, Split)
    assert decode_settings(encode_settings(split), Split) == split

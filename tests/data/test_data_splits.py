from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.data.data_splits import (
    ClassGroupSplit,
    ClassSplit,
    DirichletSplit,
    IidSplit,
    OwnerSplit,
    PowerLawSplit,
    ReplicatedSplit,
    ShardSplit,
    Split,
    split_holdout,
)
from potluck.errors import DataError, SettingError
from potluck.planning.groups import assign_round_robin
from potluck.settings import decode_settings, encode_settings, part_kinds

SPLITS = st.one_of(
    st.just(IidSplit()),
    st.builds(DirichletSplit, alpha=st.floats(0.001, 100), min_samples=st.integers(1, 4)),
    st.builds(ShardSplit, per_device=st.integers(1, 4)),
    st.builds(ClassSplit, per_device=st.integers(1, 4)),
    st.just(OwnerSplit()),
    st.builds(PowerLawSplit, exponent=st.floats(0, 20)),
)


def _too_much_asked(split: Split, labels: np.ndarray, devices: int, owners: int) -> bool:
    """Whether a split was right to refuse."""
    _, sizes = np.unique(labels, return_counts=True)
    match split:
        case DirichletSplit(min_samples=least):
            return len(labels) < devices * least
        case ShardSplit(per_device=shards):
            return len(labels) < devices * shards
        case ClassSplit(per_device=few):
            scarce = bool(sizes.min() < -(-devices * few // len(sizes)))
            return few > len(sizes) or devices * few < len(sizes) or scarce
        case OwnerSplit():
            return owners < devices
    return False


def _balanced(classes: int = 10, per_class: int = 100) -> np.ndarray:
    return np.random.default_rng(9).permutation(np.repeat(np.arange(classes), per_class))


@given(
    split=SPLITS,
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=120),
    devices=st.integers(1, 15),
    owners=st.integers(1, 20),
    seed=st.integers(0, 2**32),
)
def test_a_split_assigns_every_sample_once_and_no_shard_is_empty_or_explains_why(
    split: Split, labels: list[int], devices: int, owners: int, seed: int
) -> None:
    values, owner = np.array(labels), np.arange(len(labels)) % owners
    try:
        shards = split.assign_samples(values, devices, np.random.default_rng(seed), owner)
    except DataError:
        assert len(labels) < devices or _too_much_asked(split, values, devices, len(np.unique(owner)))
        return
    assert len(shards) == devices
    assert sorted(np.concatenate(shards)) == list(range(len(labels)))
    assert all(len(shard) and shard.dtype == np.int64 for shard in shards)
    repeated = split.assign_samples(values, devices, np.random.default_rng(seed), owner)
    assert all(np.array_equal(one, other) for one, other in zip(shards, repeated, strict=True))


@given(split=SPLITS, devices=st.integers(3, 40), seed=st.integers(0, 2**32))
def test_with_plenty_of_samples_every_split_succeeds(split: Split, devices: int, seed: int) -> None:
    labels = _balanced(classes=4, per_class=200)
    if isinstance(split, ClassSplit) and split.per_device * devices < 4:
        return
    shards = split.assign_samples(labels, devices, np.random.default_rng(seed), np.arange(len(labels)) % 40)
    assert min(len(shard) for shard in shards) >= 1


@given(
    per_device=st.integers(1, 5), labels=st.lists(st.integers(0, 4), min_size=5, max_size=80), seed=st.integers(0, 99)
)
def test_no_device_holds_more_classes_than_allowed(per_device: int, labels: list[int], seed: int) -> None:
    values = np.array(labels)
    try:
        shards = ClassSplit(per_device=per_device).assign_samples(values, 5, np.random.default_rng(seed))
    except DataError:
        return
    assert max(len(np.unique(values[shard])) for shard in shards) <= per_device


def test_ten_devices_of_one_class_each_hold_the_ten_classes() -> None:
    labels = _balanced()
    shards = ClassSplit(per_device=1).assign_samples(labels, 10, np.random.default_rng(0))
    assert sorted(int(np.unique(labels[shard]).item()) for shard in shards) == list(range(10))
    assert [len(shard) for shard in shards] == [100] * 10


def test_classes_are_shared_evenly_by_their_holders() -> None:
    labels = _balanced()
    shards = ClassSplit(per_device=2).assign_samples(labels, 20, np.random.default_rng(0))
    assert [len(shard) for shard in shards] == [50] * 20
    assert all(len(np.unique(labels[shard])) == 2 for shard in shards)


def test_iid_parts_differ_by_one_at_most() -> None:
    sizes = [len(shard) for shard in IidSplit().assign_samples(np.zeros(103), 10, np.random.default_rng(0))]
    assert set(sizes) == {10, 11}


def test_a_smaller_alpha_means_fewer_classes_per_device() -> None:
    labels = _balanced()

    def classes_held(alpha: float) -> float:
        shards = DirichletSplit(alpha=alpha).assign_samples(labels, 10, np.random.default_rng(0))
        return float(np.mean([len(np.unique(labels[shard])) for shard in shards]))

    assert classes_held(0.05) < 4 < 8 < classes_held(10)


@given(alpha=st.floats(0.001, 1), least=st.integers(1, 50), seed=st.integers(0, 99))
def test_dirichlet_keeps_its_minimum(alpha: float, least: int, seed: int) -> None:
    shards = DirichletSplit(alpha=alpha, min_samples=least).assign_samples(_balanced(), 20, np.random.default_rng(seed))
    assert min(len(shard) for shard in shards) >= least


def test_two_shards_hold_few_classes() -> None:
    labels = _balanced()
    shards = ShardSplit(per_device=2).assign_samples(labels, 50, np.random.default_rng(0))
    assert {len(shard) for shard in shards} == {20}
    assert max(len(np.unique(labels[shard])) for shard in shards) == 2


def test_an_owner_is_never_divided() -> None:
    owner = np.random.default_rng(1).integers(0, 30, 500)
    shards = OwnerSplit().assign_samples(np.zeros(500, np.int64), 7, np.random.default_rng(0), owner)
    owners = [set(owner[shard]) for shard in shards]
    assert sum(len(one) for one in owners) == len(set().union(*owners)) == 30
    assert {len(one) for one in owners} == {4, 5}


def test_more_devices_than_owners_or_no_owners_at_all_is_refused() -> None:
    labels = np.zeros(20, np.int64)
    with pytest.raises(DataError, match="2 owners cannot be split over 3 devices"):
        OwnerSplit().assign_samples(labels, 3, np.random.default_rng(0), np.arange(20) % 2)
    with pytest.raises(DataError, match="does not say whose"):
        OwnerSplit().assign_samples(labels, 3, np.random.default_rng(0))


def test_power_law_sizes_fall_as_their_exponent_says() -> None:
    shards = PowerLawSplit(exponent=1.0).assign_samples(np.zeros(10_000), 10, np.random.default_rng(0))
    sizes = np.array(sorted((len(shard) for shard in shards), reverse=True))
    np.testing.assert_allclose(sizes[0] / sizes, np.arange(1, 11), rtol=0.02)
    even = PowerLawSplit(exponent=0).assign_samples(np.zeros(100), 10, np.random.default_rng(0))
    assert {len(shard) for shard in even} == {10}


@pytest.mark.parametrize(
    ("split", "devices", "problem"),
    [
        (IidSplit(), 31, "30 samples cannot be split over 31 devices"),
        (IidSplit(), 0, "at least one device"),
        (ShardSplit(per_device=4), 10, "40 shards"),
        (DirichletSplit(min_samples=4), 10, "too few for 10 devices"),
        (ClassSplit(per_device=4), 5, "only 3"),
        (ClassSplit(per_device=1), 2, "give each at least 2"),
    ],
)
def test_an_impossible_split_is_refused_with_the_reason(split: Split, devices: int, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        split.assign_samples(np.arange(30) % 3, devices, np.random.default_rng(0))


def test_float_targets_can_be_split_evenly_but_not_by_class() -> None:
    targets = np.linspace(0, 1, 50)
    assert len(PowerLawSplit().assign_samples(targets, 5, np.random.default_rng(0))) == 5
    with pytest.raises(DataError, match="integer labels"):
        DirichletSplit().assign_samples(targets, 5, np.random.default_rng(0))


def test_splits_are_parts_with_checked_settings() -> None:
    assert set(part_kinds(Split)) >= {"iid", "dirichlet", "shards", "classes", "owner", "power-law"}
    split = decode_settings({"kind": "dirichlet", "alpha": 0.1}, Split, "split")
    assert split == DirichletSplit(alpha=0.1)
    assert decode_settings(encode_settings(split), Split) == split
    with pytest.raises(SettingError, match=r"split\.alpha"):
        decode_settings({"kind": "dirichlet", "alpha": 0}, Split, "split")
    with pytest.raises(SettingError, match=r"split\.per_device"):
        decode_settings({"kind": "shards", "per_device": 0}, Split, "split")


LABELS = np.repeat(np.arange(6), 20)


def rng() -> np.random.Generator:
    return np.random.default_rng(4)


def test_everyone_may_hold_everything() -> None:
    held = ReplicatedSplit().assign_samples(LABELS, 3, rng())
    assert all(np.array_equal(part, np.arange(120)) for part in held)


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 7])
def test_own_classes_are_shared_out_once_and_the_rest_comes_on_top(devices: int) -> None:
    split = ClassGroupSplit(groups=3, rest=0.5)
    held = split.assign_samples(LABELS, devices, rng())
    mine = []
    for numbers, part in zip(assign_round_robin(devices, 3), held, strict=True):
        own = np.isin(LABELS[part] // 2, numbers)
        mine.append(part[own])
        assert (~own).sum() == min(round(0.5 * own.sum()), (~np.isin(LABELS // 2, numbers)).sum())
        assert len(np.unique(part)) == len(part)
    assert np.array_equal(np.sort(np.concatenate(mine)), np.arange(120))


def test_groups_may_be_given() -> None:
    first, second = ClassGroupSplit(groups=((0, 5), (1, 2, 3, 4)), rest=0).assign_samples(LABELS, 2, rng())
    assert set(LABELS[first]) == {0, 5}
    assert set(LABELS[second]) == {1, 2, 3, 4}


def test_devices_may_be_named_with_many_groups_or_few_and_share_some() -> None:
    split = ClassGroupSplit(groups=3, rest=0, held={"b": (0, 2), "c": (2,)}).for_devices(["a", "b", "c"])
    first, second, third = split.assign_samples(LABELS, 3, rng())
    assert set(LABELS[first]) == {0, 1, 2, 3, 4, 5}  # the only one of which nothing is said is dealt all
    assert set(LABELS[second]) == {0, 1, 4, 5}
    assert set(LABELS[third]) == {4, 5}
    assert np.array_equal(np.sort(np.concatenate([first, second, third])), np.arange(120))


def test_the_samples_of_a_group_that_nobody_has_are_rest_for_the_others() -> None:
    split = ClassGroupSplit(groups=3, rest=10.0).for_trained_groups(((0, 1), (2, 3), (4, 5)), {"a": (0,), "b": (2,)})
    for part in split.assign_samples(LABELS, 2, rng()):
        assert {2, 3} <= set(LABELS[part])


def test_nothing_is_said_twice() -> None:
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
def test_they_can_be_written_down(table: Any) -> None:
    split = decode_settings(table, Split)
    assert decode_settings(encode_settings(split), Split) == split


@given(labels=st.lists(st.integers(0, 6), min_size=2, max_size=200), share=st.floats(0, 0.5), seed=st.integers(0, 9))
def test_a_holdout_is_disjoint_exhaustive_and_in_proportion(labels: list[int], share: float, seed: int) -> None:
    values = np.array(labels)
    count = round(share * len(values))
    train, test = split_holdout(values, count, seed)
    assert sorted([*train, *test]) == list(range(len(values)))
    assert len(test) <= count
    assert set(values) == set(values[train])
    for label in set(labels):
        exact = labels.count(label) * count / len(labels)
        assert abs(int(np.sum(values[test] == label)) - exact) <= 1

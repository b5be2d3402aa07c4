from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from potluck.data.shared import Everything, OwnGroups
from potluck.data.splits import Split
from potluck.errors import DataError
from potluck.planning.groups import dealt
from potluck.settings import decode, encode

LABELS = np.repeat(np.arange(6), 20)


def rng() -> np.random.Generator:
    return np.random.default_rng(4)


def test_everyone_may_hold_everything() -> None:
    held = Everything().assign(LABELS, 3, rng())
    assert all(np.array_equal(part, np.arange(120)) for part in held)


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 7])
def test_own_classes_are_shared_out_once_and_the_rest_comes_on_top(devices: int) -> None:
    split = OwnGroups(groups=3, rest=0.5)
    held = split.assign(LABELS, devices, rng())
    mine = []
    for numbers, part in zip(dealt(devices, 3), held, strict=True):
        own = np.isin(LABELS[part] // 2, numbers)
        mine.append(part[own])
        assert (~own).sum() == min(round(0.5 * own.sum()), (~np.isin(LABELS // 2, numbers)).sum())
        assert len(np.unique(part)) == len(part)
    assert np.array_equal(np.sort(np.concatenate(mine)), np.arange(120))


def test_groups_may_be_given() -> None:
    first, second = OwnGroups(groups=((0, 5), (1, 2, 3, 4)), rest=0).assign(LABELS, 2, rng())
    assert set(LABELS[first]) == {0, 5}
    assert set(LABELS[second]) == {1, 2, 3, 4}


def test_a_group_without_samples_is_refused() -> None:
    with pytest.raises(DataError, match="no sample of the classes"):
        OwnGroups(groups=((0, 1), (2,), (3, 4, 5))).assign(LABELS[LABELS != 2], 3, rng())


@pytest.mark.parametrize("table", ["everything", {"kind": "class-groups", "groups": [[0, 1], [2]], "rest": 2.0}])
def test_they_can_be_written_down(table: Any) -> None:
    split = decode(table, Split)
    assert decode(encode(split), Split) == split

from __future__ import annotations

import numpy as np

from potluck.data import chart
from potluck.data.data_splits import IidSplit


def test_each_device_is_a_row_and_each_class_a_column() -> None:
    labels = np.array([0, 0, 0, 0, 1, 2])
    lines = chart([np.array([0, 1, 2, 3]), np.array([4, 5])], labels, ("cat", "dog", "emu")).splitlines()
    assert lines[0].endswith("012")
    assert lines[1].endswith("4 |█  |")
    assert lines[2].endswith("2 | ▂▂|")
    assert lines[3] == "samples per device 2 to 4 (median 3); classes per device 1 to 2 (median 2)"


def test_small_counts_are_visible() -> None:
    labels = np.array([0] * 1000 + [1])
    assert "|█▁|" in chart([np.arange(1001)], labels, 2)


def test_many_devices_and_classes_are_summarised() -> None:
    labels = np.arange(1000) % 100
    lines = chart(IidSplit().assign_samples(labels, 200, np.random.default_rng(0)), labels, 100).splitlines()
    assert len(lines) == 33
    assert "30 of 200 devices" in lines[31]
    assert max(len(line) for line in lines) <= 80

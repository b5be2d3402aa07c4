from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import pytest

from potluck.journal import Span
from potluck.report import span_packing
from potluck.report.run_history import RunHistory
from potluck.report.span_packing import pack_spans


def _unpacked(packed: dict[str, Any]) -> list[list[float]]:
    """Start, length, round and detail of each span, as the page's script reads them."""
    columns = np.frombuffer(zlib.decompress(base64.b64decode(packed["columns"])), dtype="<i4").reshape(4, -1)
    starts, rounds = np.cumsum(columns[0]) * packed["tick"], np.cumsum(columns[2])
    spans: list[list[float]] = np.stack([starts, columns[1] * packed["tick"], rounds, columns[3]]).T.tolist()
    return spans


def _new_history() -> RunHistory:
    spans = [
        Span("a", "pull", 0.0, 1.5, {"round": 3, "bytes": 7}),
        Span("b", "compute", 1.0, 4.0, {"round": 3}),
        Span("a", "pull", 5.0, 6.0, {"round": 4, "bytes": 7}),
    ]
    return RunHistory().add_records(spans)


def test_packed_spans_unpack_to_the_same_spans() -> None:
    history = _new_history()
    packed = pack_spans(history, ["a", "b", "nobody"])
    assert packed["counts"] == [2, 1, 0]
    expected = [[0.0, 1.5, 3, 0], [5.0, 1.0, 4, 0], [1.0, 3.0, 3, 1]]
    for row, expected_row in zip(_unpacked(packed), expected, strict=True):
        assert row == pytest.approx(expected_row, abs=1e-7)
    assert [detail["name"] for detail in history.details] == ["pull", "compute"]


def test_only_new_spans_are_packed() -> None:
    packed = pack_spans(_new_history(), ["a", "b"], {"a": 1, "b": 1})
    assert packed["counts"] == [1, 0]
    assert _unpacked(packed)[0] == pytest.approx([5.0, 1.0, 4, 0], abs=1e-7)


def test_too_many_spans_are_merged_preserving_their_total_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_packing, "MAX_SPANS", 100)
    spans = [Span("a", "pull", 0.01 * index, 0.01 * index + 0.004, {"round": index}) for index in range(20_000)]
    packed = pack_spans(RunHistory().add_records(spans), ["a"])
    assert packed["counts"][0] < 2000
    assert sum(row[1] for row in _unpacked(packed)) == pytest.approx(20_000 * 0.004, rel=1e-3)

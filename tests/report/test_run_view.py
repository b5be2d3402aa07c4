from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from potluck.errors import RunError
from potluck.journal import Span
from potluck.report import load_run_view, run_view
from potluck.report.run_folder import RunFolder, find_runs, open_run
from potluck.report.run_history import RunHistory
from potluck.report.run_view import pack_spans
from tests.report.runs import DEVICES, JOB, every_kind, explored, faults, keep, metrics, rounds


def test_metrics_have_figures_and_curves_with_their_direction(tmp_path: Path) -> None:
    run = keep(tmp_path / "run", rounds() + metrics())
    view = load_run_view(open_run(run))
    assert view["figures"]["metrics"] == [
        {"name": "perplexity", "value": 2.5, "best": 2.0, "better": "lower"},
        {"name": "f1", "value": 0.25, "best": 0.5, "better": "higher"},
    ]
    directions = {curve["name"]: curve.get("better") for curve in view["curves"]}
    assert directions == {"loss": None, "test_accuracy": None, "test_perplexity": "lower", "test_f1": "higher"}


def test_the_figures_of_a_run(tmp_path: Path) -> None:
    view = load_run_view(open_run(keep(tmp_path, [*rounds(), *faults()])))
    figures = view["figures"]
    assert (figures["rounds"], figures["time_s"], figures["bytes"]) == (20, 40.0, 20 * 4500)
    assert figures["accuracy"] == pytest.approx(1 - 0.9 / 20)
    assert figures["energy_j"] == pytest.approx(20 * (6.4 * 1.4 + 6.4 * 1.6 + 5.0 * 1.8))
    assert (figures["lost"], figures["devices"]) == (1, 3)
    assert [device["name"] for device in view["devices"]] == list(DEVICES)
    assert view["devices"][1]["gone"] == [[7.0, 12.0, "dead"]]


def test_curves_have_all_four_axes(tmp_path: Path) -> None:
    view = load_run_view(open_run(keep(tmp_path, rounds())))
    accuracy = next(curve for curve in view["curves"] if curve["name"] == "test_accuracy")
    for axis in ("round", "time", "bytes", "energy"):
        assert len(accuracy[axis]) == len(accuracy["values"]) == 20
        assert accuracy[axis] == sorted(accuracy[axis])


def test_sections_without_records_are_omitted(tmp_path: Path) -> None:
    view = load_run_view(open_run(keep(tmp_path, rounds())))
    assert (view["signals"], view["events"], view["partitions"], view["pareto"]) == ({}, [], [], [])


def test_every_kind_of_record_is_shown(tmp_path: Path) -> None:
    folder = keep(tmp_path, every_kind())
    view = load_run_view(open_run(folder))
    assert set(view["signals"]) == {"buffer", "rate", "dropped", "share"}
    assert [(one["cuts"], one["layers"]) for one in view["partitions"]] == [([2], 6), ([3], 6)]


def test_the_pareto_table_of_the_job_is_shown(tmp_path: Path) -> None:
    view = load_run_view(open_run(keep(tmp_path, rounds(2), job=explored())))
    assert [(row["macs"], row["gain"]) for row in view["pareto"]] == [(10, 0.1), (20, 0.3)]
    job_with_path = JOB + '[rounds.submodel]\nkind = "filter-dropout"\ntable = "table.json"\n'
    assert load_run_view(open_run(keep(tmp_path / "named", rounds(2), job=job_with_path)))["pareto"] == []


def test_a_live_run_is_recognised_by_its_status_file(tmp_path: Path) -> None:
    folder = keep(tmp_path, rounds(1))
    assert load_run_view(open_run(folder))["world"] == "simulated"
    (folder / "live.json").write_text("{}")
    assert load_run_view(open_run(folder))["world"] == "live"


def test_a_journal_alone_is_enough(tmp_path: Path) -> None:
    folder = keep(tmp_path, rounds(), job="this is = not [toml", finished=False)
    view = load_run_view(open_run(folder / "journal.jsonl"))
    assert [device["name"] for device in view["devices"]] == list(DEVICES)
    assert (view["figures"]["energy_j"], view["figures"]["rounds"]) == (None, 20)


def test_an_empty_journal_is_a_run_that_has_just_started(tmp_path: Path) -> None:
    view = load_run_view(open_run(keep(tmp_path, [], finished=False)))
    assert (view["status"], view["figures"]["rounds"], view["end"]) == ("running", 0, 0.0)


def test_a_folder_without_a_journal_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no journal\.jsonl"):
        open_run(tmp_path)


def test_runs_are_found_in_a_folder_of_runs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        keep(tmp_path / name, rounds(1))
    assert {run.name for run in find_runs(tmp_path)} == {"one", "two"}
    assert find_runs(tmp_path / "one") == [RunFolder(tmp_path / "one")]
    assert find_runs(tmp_path / "nowhere") == []


def _unpacked(packed: dict[str, Any]) -> list[list[float]]:
    """Start, length, round and detail of each span, as the page's script reads them."""
    columns = np.frombuffer(zlib.decompress(base64.b64decode(packed["columns"])), dtype="<i4").reshape(4, -1)
    starts, rounds = np.cumsum(columns[0]) * packed["tick"], np.cumsum(columns[2])
    spans: list[list[float]] = np.stack([starts, columns[1] * packed["tick"], rounds, columns[3]]).T.tolist()
    return spans


def _story() -> RunHistory:
    spans = [
        Span("a", "pull", 0.0, 1.5, {"round": 3, "bytes": 7}),
        Span("b", "compute", 1.0, 4.0, {"round": 3}),
        Span("a", "pull", 5.0, 6.0, {"round": 4, "bytes": 7}),
    ]
    return RunHistory().add_records(spans)


def test_spans_come_out_as_they_went_in() -> None:
    story = _story()
    packed = pack_spans(story, ["a", "b", "nobody"])
    assert packed["counts"] == [2, 1, 0]
    expected = [[0.0, 1.5, 3, 0], [5.0, 1.0, 4, 0], [1.0, 3.0, 3, 1]]
    for found, wanted in zip(_unpacked(packed), expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-7)
    assert [detail["name"] for detail in story.details] == ["pull", "compute"]


def test_only_what_is_new_is_packed() -> None:
    packed = pack_spans(_story(), ["a", "b"], {"a": 1, "b": 1})
    assert packed["counts"] == [1, 0]
    assert _unpacked(packed)[0] == pytest.approx([5.0, 1.0, 4, 0], abs=1e-7)


def test_too_many_spans_are_merged_and_their_seconds_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_view, "MAX_SPANS", 100)
    many = [Span("a", "pull", 0.01 * place, 0.01 * place + 0.004, {"round": place}) for place in range(20_000)]
    packed = pack_spans(RunHistory().add_records(many), ["a"])
    assert packed["counts"][0] < 2000
    assert sum(row[1] for row in _unpacked(packed)) == pytest.approx(20_000 * 0.004, rel=1e-3)

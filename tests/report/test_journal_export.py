from __future__ import annotations

import csv
from pathlib import Path

import pytest

from potluck.errors import UserError
from potluck.journal import Scalar, Span
from potluck.report.journal_export import export_run
from potluck.report.run_folder import open_run
from tests.report.runs import faults, keep, rounds


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_tables_contain_every_record(tmp_path: Path) -> None:
    run = open_run(keep(tmp_path / "run", [*rounds(4), *faults()]))
    paths = {path.name: path for path in export_run(run, "csv", tmp_path / "out")}
    assert set(paths) == {"spans.csv", "instants.csv", "scalars.csv"}
    spans = _rows(paths["spans.csv"])
    assert len(spans) == 4 * 10
    assert spans[0]["node"] == "pi4-0"
    assert (float(spans[0]["end"]), spans[0]["bytes"], spans[0]["samples"]) == (0.5, "1000", "")
    assert len(_rows(paths["instants.csv"])) == 5


def test_a_name_cannot_become_a_formula(tmp_path: Path) -> None:
    run = open_run(keep(tmp_path / "run", [Span("=1+1", "pull", 0.0, 1.0)]))
    (path,) = export_run(run, "csv", tmp_path / "out")
    assert _rows(path)[0]["node"] == "'=1+1"


def test_jsonl_export_copies_the_journal(tmp_path: Path) -> None:
    run = open_run(keep(tmp_path / "run", rounds(2)))
    (path,) = export_run(run, "jsonl", tmp_path / "out")
    assert path.read_bytes() == run.journal.read_bytes()


def test_tensorboard_reads_its_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import (
        EventAccumulator,
    )

    records = [*rounds(3), Scalar("phone", "buffer", 1.0, 5.0, {"round": 2})]
    export_run(open_run(keep(tmp_path / "run", records)), "tensorboard", tmp_path / "out")
    events = EventAccumulator(str(tmp_path / "out"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "test_accuracy", "phone/buffer"}
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="choose from csv, jsonl, tensorboard"):
        export_run(open_run(keep(tmp_path, [])), "xml", tmp_path)

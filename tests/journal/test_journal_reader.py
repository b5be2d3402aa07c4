"""Lines that are no records are skipped and counted, by every reader of a journal."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from potluck.errors import PotluckWarning, RunError
from potluck.journal import (
    Journal,
    JournalTotals,
    RecordDecoder,
    Span,
    describe_unreadable,
    journal_reader,
    read_journal,
    read_journal_tail,
)
from potluck.report import load_run_view
from potluck.report.journal_export import export_run
from potluck.report.journal_follower import JournalFollower, RunOverview
from potluck.report.run_folder import open_run
from potluck.run.metric_table import read_run_scalars
from tests.report.runs import keep, rounds

RECORD = Span("pi4-0", "pull", 0.0, 1.5, {"round": 0, "bytes": 10})
GOOD = b'{"kind":"span","node":"a","name":"pull","start":0.0,"end":1.0,"fields":{"round":0,"bytes":1}}'
BAD = [
    b"",
    b"{}",
    b"null",
    b"[1, 2]",
    b'{"kind":"wedding"}',
    GOOD[:-9],
    GOOD.replace(b'"start":0.0', b'"start":null'),
    GOOD.replace(b'"start":0.0', b'"start":1e300'),
    GOOD.replace(b'"start":0.0', b'"start":NaN'),
    GOOD.replace(b'"a"', b'"\xff"'),
    GOOD.replace(b'"bytes":1', b'"bytes":null'),
    GOOD.replace(b'"bytes":1', b'"bytes":' + b"9" * 400),
    GOOD.replace(b'"bytes":1', b'"bytes":"many"'),
    GOOD.replace(b'"round":0', b'"round":4294967296'),
    GOOD.replace(b'"round":0', b'"round":null'),
    GOOD.replace(b'"bytes":1', b'"layers":[]'),
    GOOD.replace(b'"bytes":1', b'"devices":[[]]'),
    GOOD.replace(b'"bytes":1', b'"deep":' + b"[" * 5000 + b"]" * 5000),
    b'{"kind":"scalar","node":"coordinator","name":"loss","at":1.0,"value":null}',
    b"\0" * 300,
]


@pytest.mark.parametrize("line", BAD, ids=range(len(BAD)))
def test_a_bad_line_is_skipped_and_counted(tmp_path: Path, line: bytes) -> None:
    path, decoder, tail = tmp_path / "journal", RecordDecoder(), RecordDecoder()
    with Journal(path) as journal:
        journal.write_record(RECORD)
    whole = path.read_bytes()
    path.write_bytes(whole + line + b"\n" + whole)
    assert list(read_journal(path, decoder)) == [RECORD, RECORD]
    assert read_journal_tail(path, 1 << 20, tail) == [RECORD, RECORD]
    totals = JournalTotals()
    assert (decoder.unreadable, tail.unreadable, totals.add_journal(path)) == (1, 1, 1)
    assert totals.device_summary(10.0)["pi4-0"]["bytes"] == 20


def test_a_line_that_is_too_long_is_skipped_without_being_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_reader, "MAX_LINE_BYTES", 200)
    path, decoder = tmp_path / "journal", RecordDecoder()
    path.write_bytes(GOOD + b"\n" + GOOD[:-2] + b"," * 1000 + b"}}\n" + GOOD + b"\n" + b" " * 1000)
    assert len(list(read_journal(path, decoder))) == 2
    assert decoder.unreadable == 1


@pytest.mark.parametrize("empty", ["null", "[]"])
def test_a_partition_without_devices_leaves_no_stage(tmp_path: Path, empty: str) -> None:
    line = '{"kind":"instant","node":"coordinator","name":"partition","at":1.0,"fields":{"cuts":%s,"order":%s}}\n'
    path, totals = tmp_path / "journal", JournalTotals()
    path.write_text(line % ("[]", '["a"]') + line % (empty, empty))
    assert totals.add_journal(path) == 0
    assert totals.device_status.assigned_work("a") == ""


def test_a_missing_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot read journal"):
        list(read_journal(tmp_path / "none"))


def test_the_count_is_said_in_words() -> None:
    assert describe_unreadable(0) == ""
    assert describe_unreadable(1) == "1 line of the journal cannot be read and is skipped"
    assert describe_unreadable(1200) == "1,200 lines of the journal cannot be read and are skipped"


# --- every reader, on journals with any damage ------------------------------------------------------------------------


def _mutate(line: bytes, rng: random.Random) -> bytes:
    """The line with some value replaced, or some bytes changed."""
    if rng.random() < 0.3:
        content = bytearray(line)
        for _ in range(rng.randint(1, 4)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        return bytes(content).replace(b"\n", b" ")
    record: dict[str, Any] = json.loads(line)
    target = record["fields"] if record.get("fields") and rng.random() < 0.7 else record
    key = rng.choice(list(target))
    values: list[Any] = [
        None,
        -1,
        2**40,
        1e300,
        -1e18,
        "x",
        [],
        [[]],
        [None],
        {},
        True,
        [["a", None]],
        "\u202e",
        [1, 2],
    ]
    target[key] = rng.choice(values)
    if rng.random() < 0.1:
        record["name"] = rng.choice(["round", "push", "partition", "committed", "share", "link", "account", "step"])
    return json.dumps(record).encode()


def _read_in_every_way(folder: Path) -> None:
    run = open_run(folder)
    load_run_view(run)
    follower = JournalFollower(run)
    follower.read_new()
    follower.current_view()
    RunOverview(run).to_entry()
    read_run_scalars(run.journal)
    read_journal_tail(run.journal, 10_000)
    totals = JournalTotals()
    totals.add_journal(run.journal)
    totals.device_summary(10.0)
    totals.bottleneck_sentence(10.0)
    totals.stream_summary()
    for form in ("csv", "jsonl"):
        export_run(run, form, folder / "export")


@pytest.mark.filterwarnings("ignore::potluck.errors.PotluckWarning")
@pytest.mark.parametrize("seed", range(20))
def test_no_damage_makes_a_run_unreadable(tmp_path: Path, seed: int) -> None:
    rng, folder = random.Random(seed), keep(tmp_path, rounds(6))
    path = folder / "journal.jsonl"
    extra = [
        b'{"kind":"instant","node":"coordinator","name":"partition","at":1.0,"fields":{"cuts":[1],"order":["a","b"],"layers":3}}',
        b'{"kind":"instant","node":"a","name":"committed","at":1.0,"fields":{"batch":3}}',
        b'{"kind":"instant","node":"a","name":"account","at":1.0,"fields":{"stream":"s","trained":3}}',
        b'{"kind":"scalar","node":"a","name":"share","at":1.0,"value":0.5}',
        b'{"kind":"span","node":"a","name":"backward","start":0.0,"end":1.0,"fields":{"version":3,"layers":[0,2]}}',
        b'{"kind":"span","node":"a","name":"step","start":0.0,"end":1.0,"fields":{"version":3}}',
    ]
    lines = [*path.read_bytes().splitlines(), *extra]
    path.write_bytes(b"".join((_mutate(line, rng) if rng.random() < 0.5 else line) + b"\n" for line in lines))
    _read_in_every_way(folder)


def test_the_count_is_said_once(tmp_path: Path) -> None:
    folder = keep(tmp_path, rounds(2))
    path = folder / "journal.jsonl"
    path.write_bytes(path.read_bytes() + b"nonsense\n" * 2)
    with pytest.warns(PotluckWarning, match="2 lines of the journal cannot be read and are skipped") as caught:
        view = load_run_view(open_run(folder))
    assert (len(caught), view["unreadable"]) == (1, 2)
    follower = JournalFollower(open_run(folder))
    follower.read_new()
    assert follower.current_view()[0]["unreadable"] == 2
    with pytest.warns(PotluckWarning, match="2 lines") as caught:
        (exported,) = export_run(open_run(folder), "jsonl", tmp_path / "export")
    assert len(caught) == 1
    assert b"nonsense" not in exported.read_bytes()

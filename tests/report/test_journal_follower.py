from __future__ import annotations

from pathlib import Path

from potluck.journal import Journal
from potluck.report.journal_follower import JournalFollower, RunOverview
from potluck.report.run_folder import open_run
from tests.report.runs import keep, one_round, rounds


def _append(folder: Path, number: int, position: int | None = None) -> None:
    path = folder / "journal.jsonl"
    with Journal(path, path.stat().st_size if position is None else position) as journal:
        for record in one_round(number):
            journal.write_record(record)


def test_only_new_records_are_read_and_sent(tmp_path: Path) -> None:
    follower = JournalFollower(open_run(keep(tmp_path, rounds(2), finished=False)))
    assert follower.read_new()
    view, position = follower.current_view()
    assert sum(view["spans"]["counts"]) == 2 * 10
    assert not follower.read_new()
    _append(tmp_path, 2)
    assert follower.read_new()
    more, _ = follower.current_view(position)
    assert (sum(more["spans"]["counts"]), more["figures"]["rounds"]) == (10, 3)


def test_an_incomplete_line_is_read_once_complete(tmp_path: Path) -> None:
    folder = keep(tmp_path, rounds(1), finished=False)
    content = (folder / "journal.jsonl").read_bytes()
    (folder / "journal.jsonl").write_bytes(content[:-20])
    follower = JournalFollower(open_run(folder))
    follower.read_new()
    before = follower.current_view()[0]["figures"]["accuracy"]
    (folder / "journal.jsonl").write_bytes(content)
    assert follower.read_new()
    assert (before, follower.current_view()[0]["figures"]["accuracy"] is not None) == (None, True)


def test_a_truncated_journal_is_read_again(tmp_path: Path) -> None:
    """A resumed run cuts its journal back to the checkpoint."""
    folder = keep(tmp_path, rounds(3), finished=False)
    follower = JournalFollower(open_run(folder))
    follower.read_new()
    _append(folder, 0, position=0)
    follower.read_new()
    assert (follower.generation, follower.current_view()[0]["figures"]["rounds"]) == (1, 1)


def test_an_overview_follows_new_records(tmp_path: Path) -> None:
    folder = keep(tmp_path, rounds(2), finished=False)
    overview = RunOverview(open_run(folder))
    assert (overview.to_entry()["rounds"], overview.to_entry()["status"]) == (2, "running")
    _append(folder, 2)
    entry = overview.to_entry()
    assert (entry["rounds"], len(entry["curve"])) == (3, 3)
    assert entry["accuracy"] == 1 - 0.9 / 3
    assert entry["metric"] == ["accuracy", 1 - 0.9 / 3]

from __future__ import annotations

import io
import math
import re
import time
from typing import Any

import pytest
from rich.console import Console

from potluck.cli.device_table import JoiningDevices, device_labels, device_rows, device_table
from potluck.cli.progress_table import LineDisplay, ProgressEstimate, SilentDisplay, TableDisplay, choose_display
from potluck.job import make
from potluck.journal import Instant, JournalRecord, JournalTotals, Scalar, Span
from potluck.run import simulate
from potluck.run.run_lock import RunLock
from potluck.run.run_store import RunStore

JOB: dict[str, Any] = {
    "task": {"model": "mlp", "data": "synthetic", "options": {"hidden": [8]}},
    "fleet": "kitchen-table",
    "stop": {"rounds": 40},
}


def _console(width: int = 110) -> tuple[Console, io.StringIO]:
    buffer = io.StringIO()
    return Console(file=buffer, force_terminal=True, width=width, highlight=False), buffer


def _new_store(**more: Any) -> RunStore:
    return RunStore.create_run(make({**JOB, **more}), RunLock(None), None, lambda: False)


@pytest.mark.wall_clock
def test_the_table_shows_every_device_and_the_progress() -> None:
    console, buffer = _console()
    store = _new_store()
    store.progress.round, store.progress.score = 10, {"accuracy": 0.5}
    store.journal.write_record(Span("pi5", "pull", 0.0, 1.0, {"bytes": 1000}))
    store.journal.write_record(Instant("phone", "lost", 1.5))
    with TableDisplay(console, lambda: False) as picture:
        picture(store, 4.0)
        time.sleep(0.4)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", buffer.getvalue())
    assert "round 10/40 at 4 s simulated, accuracy 50.0 %" in text
    assert all(device.name in text for device in store.job.fleet.members)
    assert re.search(r"pi5 +computing +0 % +25 % +0 % +75 %", text)
    assert re.search(r"phone +lost .* 1 +$", text, re.MULTILINE)
    assert "Ctrl-C" in text


def _plain_text(buffer: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", buffer.getvalue())


@pytest.mark.wall_clock
def test_the_table_shows_missing_devices_until_the_first_round() -> None:
    console, buffer = _console()
    store = _new_store()
    names = [device.name for device in store.job.fleet.members]
    join_commands = {name: f"potluck join tls/192.168.1.5:7447 --certs {name}" for name in names}
    with TableDisplay(console, lambda: False) as picture:
        picture.show_joining(JoiningDevices(store.job.fleet, {names[0]: 1}, join_commands))
        time.sleep(0.4)
        text = _plain_text(buffer)
        picture(store, 4.0)
        time.sleep(0.4)
    assert f"1 of {len(names)} devices; waiting for" in text
    assert re.search(rf"^{names[0]} +\S+ \S*FLOP/s +joined *$", text, re.MULTILINE)
    for name in names[1:]:
        assert re.search(rf"^{name} +\S+ \S*FLOP/s +missing +{re.escape(join_commands[name])} *$", text, re.MULTILINE)
    assert "round 0/40" in _plain_text(buffer)


def test_without_a_terminal_a_line_names_the_missing_devices(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = make({**JOB, "fleet": {"devices": [{"name": "d", "count": 3, "flops": "1 GFLOP/s"}]}}).fleet
    for display in (SilentDisplay(), LineDisplay(_console()[0])):
        display.show_joining(JoiningDevices(fleet, {"d-1": 1}))
        assert capsys.readouterr().err == "1 of 3 devices; waiting for d-0, d-2\n"


def test_a_large_fleet_is_truncated_and_missing_devices_come_first() -> None:
    fleet = make({**JOB, "fleet": {"devices": [{"name": "d", "count": 50, "flops": "1 GFLOP/s"}]}}).fleet
    joining = JoiningDevices(fleet, {f"d-{index}": 1 for index in range(45)})
    console, buffer = _console()
    console.print(joining.status_table())
    lines = _plain_text(buffer).splitlines()
    assert [line.split()[0] for line in lines[1:7]] == ["d-45", "d-46", "d-47", "d-48", "d-49", "d-0"]
    assert lines[-1].strip() == "… 30 more"


@pytest.mark.wall_clock
def test_the_table_adds_little_overhead_to_a_run() -> None:
    console, buffer = _console()
    with TableDisplay(console, lambda: True) as picture:
        picture(_new_store(), 1.0)
        time.sleep(1.2)
        started_at = time.perf_counter()
        for _ in range(1000):
            picture(_keeper_once, 1.0)
        assert time.perf_counter() - started_at < 0.1
    assert 1 <= buffer.getvalue().count("stopping at a safe point") <= 7


_keeper_once = _new_store()


def test_lines_are_printed_at_a_limited_rate() -> None:
    console, buffer = _console()
    with LineDisplay(console, least_s=0.0, most_s=math.inf) as lines:
        simulate(JOB, watch=lines, threads=0)
    display = [int(round_number) for round_number in re.findall(r"round (\d+)/40", buffer.getvalue())]
    assert display == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]


class _Clock:
    """A clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("potluck.cli.progress_table.time.perf_counter", lambda: self.now)


def test_long_runs_print_lines_periodically(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch)
    console, buffer = _console()
    store = _new_store(stop={"rounds": 10**6})
    with LineDisplay(console, least_s=0.0, most_s=0.1) as lines:
        for round_number in range(30):
            store.progress.round = round_number
            lines(store, float(round_number))
            clock.now += 0.01
    assert re.findall(r"round (\d+)/", buffer.getvalue()) == ["10", "20"]


def test_quiet_prints_nothing_and_no_terminal_prints_lines() -> None:
    assert type(choose_display(quiet=True)) is SilentDisplay
    assert isinstance(choose_display(quiet=False), LineDisplay | TableDisplay)


def test_the_estimate_of_a_resumed_run_starts_at_the_resumed_round(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch)
    estimate, store = ProgressEstimate(), _new_store()
    store.progress.round = 20
    estimate.observe_round(store, 1.0)
    assert estimate.remaining_s() is None
    clock.now += 0.5
    store.progress.round = 30
    estimate.observe_round(store, 2.0)
    assert estimate.remaining_s() == pytest.approx(0.5)  # half of the rest took as long


def test_large_fleets_are_shown_by_group() -> None:
    fleet = make({**JOB, "fleet": {"devices": [{"preset": "pi4", "count": 300}, {"preset": "phone"}]}}).fleet
    rows = device_rows(fleet)
    assert [(row.label, len(row.devices)) for row in rows] == [("pi4 ×300", 300), ("phone", 1)]
    totals = JournalTotals()
    for round_number in range(300):
        totals.add_record(Span(f"pi4-{round_number}", "compute", 0.0, 1.0, {"samples": 2}))
    console, buffer = _console()
    console.print(device_table(rows, totals, 2.0))
    assert re.search(r"pi4 ×300 .* 50 %.* 600 ", buffer.getvalue())


def _drawn(records: list[JournalRecord], now: float, width: int = 200, **more: Any) -> list[str]:
    """The lines of the live table, without colours."""
    job, totals = make({**JOB, **more}), JournalTotals()
    for record in records:
        totals.add_record(record)
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, highlight=False)
    console.print(
        device_table(device_rows(job.fleet), totals, now, doing=True, width=width, assigned=device_labels(job))
    )
    return buffer.getvalue().splitlines()


ROUNDS: list[JournalRecord] = [
    Span("pi5", "pull", 0.0, 1.0, {"round": 0, "bytes": 1_000_000}),
    Span("pi5", "compute", 1.0, 2.0, {"round": 0, "samples": 32}),
    Span("pi5", "push", 2.0, 4.0, {"round": 0, "bytes": 500_000}),
    Span("coordinator", "round", 0.0, 4.0, {"round": 0, "devices": [["pi5", 0]]}),
    Span("coordinator", "round", 4.0, 8.0, {"round": 1, "devices": [["laptop", 1]]}),
]


def _cells(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


def test_the_table_shows_the_status_of_a_device() -> None:
    head, *lines = _drawn(ROUNDS, 8.0)
    assert _cells(head)[:6] == ["device", "now", "compute", "pull", "push", "wait"]
    cells = dict(zip(_cells(head), _cells(next(line for line in lines if line.startswith("pi5"))), strict=False))
    assert cells["samples/s"] == "4"
    assert cells["link"] == "↓ 8 Mbit/s ↑ 2 Mbit/s"
    assert (cells["staleness"], cells["last seen"]) == ("1", "4 s ago")


def test_columns_without_records_are_left_out() -> None:
    head = _cells(_drawn([Span("pi5", "compute", 0.0, 1.0)], 2.0)[0])
    assert not {"part", "samples", "samples/s", "link", "staleness"} & set(head)
    assert "last seen" in head


def test_the_part_column_shows_the_stage_fraction_or_groups() -> None:
    staged: list[JournalRecord] = [Instant("coordinator", "partition", 0.0, {"order": ["pi5", "laptop"], "cuts": [3]})]
    assert any(re.match(r"pi5 +waiting +stage 1/2 ", line) for line in _drawn(staged, 1.0))
    assert any(re.match(r"pi5 +waiting +45 % ", line) for line in _drawn([Scalar("pi5", "share", 0.5, 0.45)], 1.0))
    parts = {"submodel": {"kind": "class-groups", "groups": 5, "held": {"pi5": [1, 4]}}}
    assert any(re.match(r"pi5 +waiting +groups 1, 4 ", line) for line in _drawn([], 1.0, rounds=parts))


def test_the_staleness_of_a_stage_is_that_of_its_gradient() -> None:
    records: list[JournalRecord] = [
        Span("pi5", "backward", 0.0, 1.0, {"batch": 3, "version": 1}),
        Span("pi5", "step", 1.0, 1.0, {"batch": 3, "version": 4}),
    ]
    head, *lines = _drawn(records, 1.0)
    index = head.index("staleness") + len("staleness")
    assert next(line for line in lines if line.startswith("pi5"))[:index].endswith(" 2")


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60, 40, 20])
def test_a_narrow_terminal_drops_the_least_important_columns_first(width: int) -> None:
    lines = _drawn(ROUNDS, 8.0, width)
    assert all(len(line.rstrip()) <= width for line in lines)
    assert not any("…" in line for line in lines)
    columns = ["bytes", "compute", "staleness", "last seen", "samples/s", "now"]
    kept_columns = [name for name in columns if name in lines[0]]
    assert kept_columns == columns[len(columns) - len(kept_columns) :]
    assert ("samples/s" in lines[0]) is (width >= 40)


def test_a_run_in_each_kind_of_loop_fills_the_table() -> None:
    pipeline = {"recipe": "ftpipehd", "stop": {"rounds": 4}, "task": {**JOB["task"], "options": {"hidden": [8, 8, 8]}}}
    for more, stage_label in ((pipeline, "stage 1/"), ({"stop": {"rounds": 3}}, None)):
        stores: list[RunStore] = []
        simulate({**JOB, **more}, watch=lambda store, now, stores=stores: stores.append(store), threads=0)  # type: ignore[misc]
        status, names = stores[-1].tally.device_status, [device.name for device in stores[-1].job.fleet.members]
        assert any(status.update_staleness(name) is not None for name in names)
        assert any(status.last_seen(name) for name in names)
        assert any(status.assigned_work(name).startswith(stage_label or "stage") for name in names) is (
            stage_label is not None
        )

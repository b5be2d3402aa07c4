"""The `report` and `export` commands, and the page that `ui` serves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from potluck.cli.report_command import export_command, report_command, ui_command
from potluck.errors import UserError
from potluck.report.headless_browser import find_browser
from tests.report.runs import keep, rounds

APP = typer.Typer()
APP.command("report")(report_command)
APP.command("export")(export_command)
APP.command("ui")(ui_command)


def _call(*arguments: str | Path) -> str:
    outcome = CliRunner().invoke(APP, [str(argument) for argument in arguments], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_a_report_is_written_to_the_run_folder(tmp_path: Path) -> None:
    run = keep(tmp_path / "run", rounds(2))
    assert _call("report", run).strip() == f"written: {run / 'report.html'}"
    assert (run / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_comparison_is_written_to_the_given_path(tmp_path: Path) -> None:
    runs = [keep(tmp_path / name, rounds(2)) for name in ("a", "b")]
    report = json.loads(_call("report", *runs, "-o", tmp_path / "both.html", "--json"))
    assert (report["report"], report["bytes"] > 50_000) == (str(tmp_path / "both.html"), True)


@pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome found")
def test_figures_are_saved_as_images(tmp_path: Path) -> None:
    report = json.loads(_call("report", keep(tmp_path / "run", rounds(3)), "--png", tmp_path / "png", "--json"))
    assert {Path(path).name for path in report["pictures"]} >= {"learning.png", "timeline.png", "time.png", "fleet.png"}
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in report["pictures"])


def test_without_a_browser_images_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTLUCK_BROWSER", "no-such-browser")
    run = keep(tmp_path / "run", rounds(1))
    with pytest.raises(UserError, match="no Chromium or Chrome found; install one"):
        _call("report", run, "--png", tmp_path / "png")


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        _call("report", tmp_path)


def test_export_lists_the_files_it_writes(tmp_path: Path) -> None:
    run = keep(tmp_path / "run", rounds(2))
    report = json.loads(_call("export", run, "--to", "csv", "--json"))
    assert {Path(path).name for path in report["files"]} == {"spans.csv", "scalars.csv"}


def test_an_occupied_port_is_refused_in_one_line(tmp_path: Path) -> None:
    import socket

    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        with pytest.raises(UserError, match="choose another --port"):
            _call("ui", tmp_path, "--port", str(occupied.getsockname()[1]))


def test_the_server_stops_even_while_a_client_follows_a_run(tmp_path: Path) -> None:
    import httpx

    keep(tmp_path / "run", rounds(2), finished=False)
    program = (
        "from pathlib import Path; from potluck.cli.report_command import ui_command; ui_command(Path('.'), port=0)"
    )
    with subprocess.Popen(
        [sys.executable, "-u", "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        address = server.stdout.readline().split(" at ")[1].split()[0]
        assert address.startswith("http://127.0.0.1:")
        with httpx.Client(trust_env=False, timeout=20) as client:
            try:
                assert [run["id"] for run in client.get(f"{address}runs.json").json()] == ["run"]
                with client.stream("GET", f"{address}run/run/events") as following:
                    lines = following.iter_lines()
                    assert next(lines) == "event: whole"
                    server.send_signal(signal.SIGINT)
                    assert "event: over" not in list(lines), "it does not say that the run is over"
                assert server.wait(10) == 0
            finally:
                server.kill()
        assert server.stderr.read() == ""

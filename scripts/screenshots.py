"""Takes the screenshots in docs/pictures: a report for each method and the live page (`make screenshots`).

Recipes that are not in the catalogue are skipped with a message. Without a browser the script exits with 1.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

import potluck
from potluck.errors import UserError
from potluck.job import load_job
from potluck.recipes import CATALOGUE
from potluck.report import render_report
from potluck.report.headless_browser import HeadlessBrowser, find_browser
from potluck.report.report_server import create_server

ROOT = Path(__file__).parents[1]
PICTURES, EXAMPLES = ROOT / "docs" / "pictures", ROOT / "examples"
FLEET: Mapping[str, Any] = {
    "lease": "2 s",
    "devices": [
        {"preset": "laptop", "count": 2, "speed": {"kind": "random-walk", "low": 0.4, "every": "2 s"}},
        {"preset": "jetson-nano", "link": "wifi"},
        {"preset": "pi5"},
        {"preset": "pi4", "count": 2},
    ],
    "faults": [{"kind": "crash", "device": "pi4-1", "at": "3 s", "restart": "2 s"}],
}
TASK = {"model": "cnn", "data": "digits"}
CHAIN: Mapping[str, Any] = {
    "lease": "2 s",
    "devices": [
        {"preset": "laptop", "link": "lan"},
        {"preset": "pi5", "link": "lan"},
        {"preset": "pi4", "count": 2, "link": "lan"},
    ],
    "faults": [{"kind": "crash", "device": "pi5", "at": "600 ms", "restart": "400 ms"}],
}
JOBS: Mapping[str, Mapping[str, Any] | Path] = {
    "dynacomm": {"task": TASK, "fleet": FLEET, "stop": {"rounds": 60}, "rounds": {"batching": {"size": 160}}},
    "ftpipehd": {
        "task": {"model": "resnet20", "data": "synthetic"},
        "fleet": CHAIN,
        "stop": {"rounds": 60},
        "evaluate": 10,
        "pipeline": {"optimizer": {"lr": 0.01}},
    },
    "scadles": EXAMPLES / "scadles",
    "decoupled": EXAMPLES / "decoupled",
    "distreal": EXAMPLES / "distreal",
    "fedavg": {"task": TASK, "fleet": FLEET, "stop": {"rounds": 40}},
    "fedbuff": {"task": TASK, "fleet": FLEET, "stop": {"rounds": 80}},
}


def main() -> None:
    if find_browser() is None:
        typer.echo("no Chromium or Chrome was found; install one (on Debian: apt-get install chromium)")
        raise typer.Exit(1)
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        finished = [name for name, job in JOBS.items() if _run_job(name, job, runs / name)]
        with HeadlessBrowser(1280, 900) as browser:
            for name in finished:
                _capture_report(browser, [runs / name], f"report-{name}.png")
            if {"fedavg", "fedbuff"} <= set(finished):
                _capture_report(browser, [runs / "fedavg", runs / "fedbuff"], "comparison.png")
            _capture_live_pages(browser, runs)


def _run_job(name: str, job: Mapping[str, Any] | Path, folder: Path) -> bool:
    if name not in CATALOGUE:
        typer.echo(f"skipped {name}: the catalogue has no such recipe")
        return False
    try:
        potluck.simulate(
            load_job(job / "job.toml") if isinstance(job, Path) else {"recipe": name, **job}, folder=folder
        )
    except UserError as error:
        typer.echo(f"skipped {name}: {error}")
        return False
    return True


def _capture_report(browser: HeadlessBrowser, runs: list[Path], name: str) -> None:
    page = runs[0] / "report.html"
    page.write_text(render_report(runs), encoding="utf-8")
    browser.open_file(page)
    _save(browser, name)


def _capture_live_pages(browser: HeadlessBrowser, runs: Path) -> None:
    """The page of a run in progress, and the list of runs."""
    running = runs / "running"
    program = (
        "import potluck, sys; potluck.simulate({'recipe': 'fedavg', 'task': {'model': 'cnn', 'data': 'digits'},"
        " 'fleet': 'kitchen-table', 'stop': {'rounds': 100000}, 'checkpoint': 2}, folder=sys.argv[1])"
    )
    runner = subprocess.Popen([sys.executable, "-c", program, str(running)])
    try:
        with _served(runs) as address:
            _wait_for_any(running / "summary.json", running / "journal.jsonl")
            browser.open(f"{address}run/running/")
            browser.wait_for("Number(document.querySelector('[data-tile=Rounds] .value').textContent) > 6")
            _save(browser, "live.png")
            browser.open(address)
            browser.wait_for("document.querySelectorAll('tr[data-run]').length > 1")
            _save(browser, "runs.png")
            browser.evaluate("location.replace('about:blank')")
    finally:
        runner.terminate()
        runner.wait()


def _wait_for_any(*paths: Path, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not any(path.exists() for path in paths) and time.monotonic() < deadline:
        time.sleep(0.1)


@contextmanager
def _served(root: Path) -> Iterator[str]:
    server = create_server(root)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(5)


def _save(browser: HeadlessBrowser, name: str) -> None:
    if browser.errors:
        raise SystemExit(f"{name}: the page raised {browser.errors}")
    (PICTURES / name).write_bytes(browser.screenshot(whole=True))
    typer.echo(f"written: docs/pictures/{name}")


if __name__ == "__main__":
    typer.run(main)

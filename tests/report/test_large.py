"""A hundred devices and a thousand rounds: the page is rendered in time and stays responsive."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from potluck.journal import JournalRecord
from potluck.report import render_report
from potluck.report.headless_browser import HeadlessBrowser, find_browser
from tests.report.runs import JOB, keep, one_round

DEVICES = [f"device-with-quite-a-long-name-of-its-own-{index:02d}" for index in range(100)]
ZOOM = """(async () => {
  const canvas = document.querySelector("canvas[data-chart]"), took = [];
  for (let turn = 0; turn < 12; turn++) {
    const began = performance.now();
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: turn % 2 ? "-" : "+" }));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    took.push(performance.now() - began);
  }
  return took.sort((a, b) => a - b)[3];
})()"""


def _kept(folder: Path, rounds: int) -> Path:
    """A run of a hundred devices: about 50 kB a round."""
    job = JOB.split("[[fleet", 1)[0] + '[[fleet.devices]]\nname = "device"\npreset = "pi4"\ncount = 100\n'
    records: list[JournalRecord] = [record for number in range(rounds) for record in one_round(number, DEVICES)]
    keep(folder, records, job=job)
    assert (folder / "journal.jsonl").stat().st_size > 45e3 * rounds
    return folder


def _made(folder: Path, path: Path) -> float:
    """Write the page and return CPU seconds, which do not depend on the load of the machine."""
    started_at = time.process_time()
    path.write_text(render_report([folder]), encoding="utf-8")
    return time.process_time() - started_at


@pytest.mark.wall_clock
def test_five_megabytes_in_a_second(tmp_path: Path) -> None:
    assert _made(_kept(tmp_path / "large", 100), tmp_path / "report.html") < 1


@pytest.mark.long
@pytest.mark.wall_clock
def test_fifty_megabytes_in_ten_seconds(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    made_s = _made(_kept(tmp_path / "large", 1000), path)
    assert path.stat().st_size < 8e6
    assert made_s < 6
    if find_browser() is None:
        return
    with HeadlessBrowser() as browser:
        started_at = time.perf_counter()
        browser.open_file(path)
        opened_s = time.perf_counter() - started_at
        frame_ms = browser.evaluate(ZOOM)
        assert browser.errors == []
    assert opened_s < 10
    assert frame_ms < 250

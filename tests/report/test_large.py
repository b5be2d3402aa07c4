"""A hundred devices and a thousand rounds: the page is made in time and stays quick."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from potluck.journal import Record
from potluck.report import html
from potluck.report.browser import Browser, find_browser
from tests.report.runs import JOB, keep, one_round

DEVICES = [f"device-with-quite-a-long-name-of-its-own-{place:02d}" for place in range(100)]
ZOOM = """(async () => {
  const canvas = document.querySelector("canvas[data-chart]"), began = performance.now();
  for (let turn = 0; turn < 10; turn++) {
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: turn % 2 ? "-" : "+" }));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  }
  return (performance.now() - began) / 10;
})()"""


@pytest.mark.long
def test_fifty_megabytes_in_ten_seconds(tmp_path: Path) -> None:
    job = JOB.split("[[fleet", 1)[0] + '[[fleet.devices]]\nname = "device"\npreset = "pi4"\ncount = 100\n'
    records: list[Record] = [record for number in range(1000) for record in one_round(number, DEVICES)]
    folder = keep(tmp_path / "large", records, job=job)
    assert (folder / "journal.jsonl").stat().st_size > 45e6
    began = time.perf_counter()
    page = html([folder])
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    made_s = time.perf_counter() - began
    assert len(page) < 8e6
    if find_browser() is None:
        assert made_s < 10
        return
    with Browser() as browser:
        began = time.perf_counter()
        browser.open_file(path)
        opened_s = time.perf_counter() - began
        frame_ms = browser.evaluate(ZOOM)
        assert browser.errors == []
    assert made_s + opened_s < 10, (made_s, opened_s)
    assert frame_ms < 250

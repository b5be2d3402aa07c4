"""Report pages in a real browser: they open without errors, show data, and respond to mouse and keyboard."""

from __future__ import annotations

import base64
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from potluck.journal import Journal
from potluck.journal.storage_warning import StorageWarning, note_warning, withdraw_warning
from potluck.report import render_report
from potluck.report.headless_browser import HeadlessBrowser, find_browser
from potluck.report.report_server import create_server as serving
from tests.cli.calling import FLEET as SMALL_FLEET
from tests.cli.calling import JOB as SMALL_JOB
from tests.cli.calling import start
from tests.report.runs import every_kind, explored, keep, metrics, one_round, rounds

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium or Chrome was found (on Debian: apt-get install chromium)"
)

CANVAS = "document.querySelector('canvas[data-chart]')"
CANVAS_BOX = f"(() => {{ {CANVAS}.scrollIntoView({{block: 'center'}}); const box = {CANVAS}.getBoundingClientRect();"
CANVAS_BOX += " return [box.left, box.top, box.width, box.height]; })()"
TIP = "document.querySelector('#tip.shown')?.textContent"
WINDOW = "parseFloat(document.querySelector('.window i').style.width)"
COLOURS = f"""(() => {{
  const canvas = {CANVAS}, data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Set();
  for (let at = 0; at < data.length; at += 4) seen.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
  return seen.size;
}})()"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[HeadlessBrowser]:
    with HeadlessBrowser(1280, 900) as browser:
        yield browser


@pytest.fixture
def browser(chromium: HeadlessBrowser) -> Iterator[HeadlessBrowser]:
    chromium.errors.clear()
    chromium.resize_page(1280, 900)
    yield chromium
    assert chromium.errors == []


def _open(browser: HeadlessBrowser, folder: Path, *runs: Path) -> None:
    path = folder / "report.html"
    path.write_text(render_report(runs), encoding="utf-8")
    browser.open_file(path)


@pytest.fixture
def full_run(tmp_path: Path) -> Path:
    return keep(tmp_path / "whole", every_kind(), job=explored())


def test_every_section_is_shown_with_data(browser: HeadlessBrowser, full_run: Path) -> None:
    _open(browser, full_run, full_run)
    sections = browser.evaluate("[...document.querySelectorAll('#sections > section')].map((part) => part.id)")
    assert sections == [
        "learning", "timeline", "time", "fleet", "devices", "streams", "submodels", "pareto", "partitions", "events",
        "job",
    ]  # fmt: skip
    points = "Math.min(...[...document.querySelectorAll('polyline[data-line]')].map((line) => line.points.length))"
    assert browser.evaluate(points) >= 20
    assert browser.evaluate("document.querySelectorAll('#time rect[data-class]').length") >= 12
    assert browser.evaluate("document.querySelectorAll('#fleet [data-device]').length") == 3
    assert browser.evaluate("document.querySelectorAll('#partitions [data-stage]').length") == 4
    assert browser.evaluate("document.querySelectorAll('#submodels [data-heat]').length") > 10
    assert browser.evaluate("document.querySelectorAll('#pareto [data-point]').length") == 2
    assert browser.evaluate(COLOURS) > 20


def test_sections_without_records_are_left_out(browser: HeadlessBrowser, tmp_path: Path) -> None:
    _open(browser, tmp_path, keep(tmp_path / "run", rounds(3)))
    sections = browser.evaluate("[...document.querySelectorAll('#sections > section')].map((part) => part.id)")
    assert sections == ["learning", "timeline", "time", "fleet", "devices", "job"]


def test_the_timeline_describes_the_span_under_the_pointer(browser: HeadlessBrowser, tmp_path: Path) -> None:
    _open(browser, tmp_path, keep(tmp_path / "run", rounds(1)))
    left, top, width, _ = browser.evaluate(CANVAS_BOX)
    across = left + 118 + (width - 118) * 0.3  # at 0.6 s of 2 s the first device computes
    browser.move_to(across, top + 26 + 20 + 8)
    browser.wait_for(TIP)
    tooltip = browser.evaluate(TIP)
    assert all(text in tooltip for text in ("pi4-0", "compute, round 0", "500 ms", "samples 32"))


def test_the_timeline_zooms_by_drag_wheel_and_keys(browser: HeadlessBrowser, full_run: Path) -> None:
    _open(browser, full_run, full_run)
    left, top, width, height = browser.evaluate(CANVAS_BOX)
    browser.press_mouse(left + 400, top + 60, to=(left + 500, top + 60))
    browser.wait_for(f"{WINDOW} < 20")
    browser.evaluate(f"{CANVAS}.focus()")
    before = browser.evaluate(WINDOW)
    browser.scroll_wheel(left + width / 2, top + height / 2, -120)
    browser.wait_for(f"{WINDOW} < {before}")
    browser.press_key("0")
    browser.wait_for(f"{WINDOW} === 100")
    browser.press_key("+")
    browser.wait_for(f"{WINDOW} < 100")


def test_curves_show_values_and_switch_axes(browser: HeadlessBrowser, full_run: Path) -> None:
    _open(browser, full_run, full_run)
    for axis in ("round", "bytes", "energy", "time"):
        browser.evaluate(f"document.querySelector('[data-choice={axis}]').click()")
        browser.wait_for(f"document.querySelector('[data-choice={axis}]').getAttribute('aria-pressed') === 'true'")
        assert browser.evaluate("document.querySelector('#learning polyline').points.length") == 20
    box = "document.querySelector('#learning svg.chart').getBoundingClientRect()"
    browser.evaluate("scrollTo(0, 0)")
    left, top, width = browser.evaluate(f"[{box}.left, {box}.top, {box}.width]")
    browser.move_to(left + width * 0.6, top + 90)
    browser.wait_for(TIP)
    assert "accuracy, held-out data" in browser.evaluate(TIP)


def test_each_metric_has_a_chart_and_a_column_with_its_direction(browser: HeadlessBrowser, tmp_path: Path) -> None:
    run, plain = keep(tmp_path / "run", rounds() + metrics()), keep(tmp_path / "plain", rounds())
    _open(browser, tmp_path, run)
    panels = browser.evaluate(
        "[...document.querySelectorAll('#learning [data-panel]')].map((one) => one.dataset.panel)"
    )
    assert panels[2:] == ["perplexity on held-out data, lower is better", "f1 on held-out data, higher is better"]
    assert "best 50.0 %, higher is better" in browser.evaluate("document.querySelector('[data-tile=f1]').textContent")
    _open(browser, tmp_path, run, plain)
    cells = "(row) => [...row.children].map((cell) => cell.textContent)"
    head, first, second = browser.evaluate(f"[...document.querySelectorAll('[data-comparison] tr')].map({cells})")
    column = head.index("perplexity")
    assert (first[column], second[column], head[column + 1]) == ("2.5", "–", "f1")


def test_a_device_named_like_a_script_tag_is_shown_as_text(browser: HeadlessBrowser, tmp_path: Path) -> None:
    name = "<script>document.title='taken'</script><img/src=x>"
    _open(browser, tmp_path, keep(tmp_path / "run", rounds(2, ["pi4-0", name]), finished=False))
    assert browser.evaluate("document.title") != "taken"
    assert browser.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert browser.evaluate("document.querySelector('#time svg').textContent.includes('<script>')")


def test_compared_runs_are_overlaid(browser: HeadlessBrowser, tmp_path: Path) -> None:
    _open(browser, tmp_path, keep(tmp_path / "a", rounds(9)), keep(tmp_path / "b", rounds(5)))
    lines = "[...document.querySelectorAll('#learning polyline')].map((line) => line.dataset.line)"
    assert browser.evaluate(lines) == ["fedavg, a", "fedavg, b", "fedavg, a, training", "fedavg, b, training"]
    assert browser.evaluate("document.querySelectorAll('[data-comparison] tbody tr').length") == 2
    browser.evaluate("document.querySelector('.chooser [data-choice=\"1\"]').click()")
    browser.wait_for("document.querySelector('.chooser [data-choice=\"1\"]').getAttribute('aria-pressed') === 'true'")


def test_light_and_dark_can_be_switched(browser: HeadlessBrowser, full_run: Path) -> None:
    _open(browser, full_run, full_run)
    background = "getComputedStyle(document.body).backgroundColor"
    before = browser.evaluate(background)
    browser.evaluate("document.querySelector('[data-theme-switch]').click()")
    assert browser.evaluate(background) != before
    browser.press_key("t")
    assert browser.evaluate(background) == before


def test_a_narrow_screen_needs_no_sideways_scrolling(browser: HeadlessBrowser, full_run: Path) -> None:
    browser.resize_page(380, 800)
    _open(browser, full_run, full_run)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 380


def test_every_figure_is_saved_as_an_image(browser: HeadlessBrowser, full_run: Path) -> None:
    _open(browser, full_run, full_run)
    figures: dict[str, str] = browser.evaluate("potluckFigures()")
    assert {"learning", "timeline", "time", "fleet", "pareto", "partitions"} <= set(figures)
    for address in figures.values():
        picture = base64.b64decode(address.partition(",")[2])
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 4000


def test_control_characters_are_written_out(browser: HeadlessBrowser, tmp_path: Path) -> None:
    name = "pi\x1b[2J\u202e\u200b\x9b"
    _open(browser, tmp_path, keep(tmp_path / "run", rounds(2, ["pi4-0", name]), finished=False))
    shown = browser.evaluate("document.querySelector('#time svg').textContent")
    assert "pi\\u001b[2J\\u202e" in shown
    assert (
        browser.evaluate("/[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200b\\u202e]/.test(document.body.textContent)") is False
    )


_INJECT = """(() => {
  const script = document.createElement("script");
  script.textContent = "document.title = 'taken'";
  document.body.append(script);
  const image = document.createElement("img");
  image.setAttribute("onerror", "document.title = 'taken'");
  image.src = "data:,";
  document.body.append(image);
  return fetch("https://potluck.invalid/").then(() => "sent", () => document.title);
})()"""


@pytest.mark.parametrize("served", [False, True])
def test_the_policy_of_a_page_stops_injected_scripts_and_requests(
    chromium: HeadlessBrowser, tmp_path: Path, served: bool
) -> None:
    folder = keep(tmp_path / "run", rounds(2))
    with _served(tmp_path) as address:
        if served:
            chromium.open(f"{address}run/run/")
        else:
            _open(chromium, tmp_path, folder)
        chromium.errors.clear()
        title = chromium.evaluate("document.title")
        assert chromium.evaluate(_INJECT) == title
        chromium.wait_for("true")
    assert sum("Content Security Policy" in error for error in chromium.errors) >= 2
    chromium.evaluate("location.replace('about:blank')")


# --- the page that follows --------------------------------------------------------------------------------------------


@contextmanager
def _served(root: Path) -> Iterator[str]:
    server = serving(root)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join(5)


def test_a_running_run_updates_the_page(browser: HeadlessBrowser, tmp_path: Path) -> None:
    folder = keep(tmp_path / "going", rounds(2), finished=False)
    rounds_shown = "document.querySelector('[data-tile=Rounds] .value').textContent"
    with _served(tmp_path) as address:
        browser.open(f"{address}run/going/")
        assert browser.evaluate(rounds_shown) == "2"
        before = browser.evaluate(COLOURS)
        path = folder / "journal.jsonl"
        for number in range(2, 12):
            with Journal(path, path.stat().st_size) as journal:
                for record in one_round(number):
                    journal.write_record(record)
        browser.wait_for(f"{rounds_shown} === '12'")
        assert browser.evaluate("document.querySelector('#learning polyline').points.length") == 12
        assert browser.evaluate(COLOURS) != before
        (folder / "summary.json").write_text('{"status": "done", "reason": "12 rounds"}')
        browser.wait_for("document.querySelector('[data-status=done]')")
        browser.evaluate("location.replace('about:blank')")


def test_a_page_shows_that_the_runs_folder_cannot_be_written(browser: HeadlessBrowser, tmp_path: Path) -> None:
    run = keep(tmp_path / "runs" / "one", rounds(3), finished=False)
    os.utime(run / "journal.jsonl", (0, 0))  # nothing has been written for long
    warning = StorageWarning(
        problem="No space left on device", since=0.0, held_bytes=2_000_000, held_records=900, dropped_records=0, pid=1,
        round=7,
    )  # fmt: skip
    note_warning(run, warning)
    with _served(tmp_path / "runs") as address:
        browser.open(f"{address}run/one/")
        shown = browser.evaluate("document.querySelector('.warning').textContent")
        assert "No space left on device; training continues (round 7), 900 records (2 MB) are held in memory" in shown
        assert browser.evaluate("document.querySelector('[data-status]').dataset.status") == "running"
        withdraw_warning(run)
        browser.wait_for("document.querySelector('.warning') === null")
        browser.evaluate("location.replace('about:blank')")


def test_a_training_process_is_followed_to_its_end(browser: HeadlessBrowser, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(SMALL_JOB.replace("rounds = 3", "rounds = 1_000_000"))
    (tmp_path / "fleet.toml").write_text(SMALL_FLEET)
    process = start(["run", "job.toml", "--quiet", "--out", "runs/going"], tmp_path)
    rounds_shown = "parseInt(document.querySelector('[data-tile=Rounds] .value').textContent.replace(/\\D/g, ''))"
    try:
        _await_file(tmp_path / "runs/going/journal.jsonl")
        with _served(tmp_path / "runs") as address:
            browser.open(f"{address}run/going/")
            first = browser.evaluate(rounds_shown)
            browser.wait_for(f"{rounds_shown} > {first}")
            browser.wait_for(f"{rounds_shown} > {browser.evaluate(rounds_shown)}")
            process.send_signal(signal.SIGINT)
            browser.wait_for("document.querySelector('[data-status=interrupted]')")
            browser.evaluate("location.replace('about:blank')")
    finally:
        process.kill()
        process.communicate()


def _await_file(path: Path) -> None:
    for _ in range(600):
        if path.exists() and path.stat().st_size > 0:
            return
        time.sleep(0.1)
    raise AssertionError(f"{path.name} is still empty after a minute")


def test_the_run_list_responds_to_the_keyboard(browser: HeadlessBrowser, tmp_path: Path) -> None:
    for name in ("one", "two"):
        keep(tmp_path / name, rounds(2))
    with _served(tmp_path) as address:
        browser.open(address)
        browser.wait_for("document.querySelectorAll('tr[data-run]').length === 2")
        browser.press_key("j")
        chosen_run = browser.evaluate("document.querySelector('tr.chosen').dataset.run")
        assert chosen_run == browser.evaluate("document.querySelectorAll('tr[data-run]')[1].dataset.run")
        browser.press_key("/")
        browser.evaluate(
            "document.activeElement.value = 'tw'; document.activeElement.dispatchEvent(new Event('input'))"
        )
        browser.wait_for("document.querySelectorAll('tr[data-run]').length === 1")
        browser.press_key("Escape")
        browser.press_key("Enter")
        browser.wait_for("location.pathname === '/run/two/' && document.querySelector('canvas[data-chart]')")
        browser.evaluate("location.replace('about:blank')")

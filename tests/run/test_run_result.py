from __future__ import annotations

import asyncio
import sys
import threading
import types
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import potluck
from potluck.data import from_tensors
from potluck.run.metric_table import MetricTable
from potluck.run.notebook_thread import run_beside_event_loop, run_coroutine


def _result(folder: Path | None = None, **settings: Any) -> potluck.Result:
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    labels = (inputs.sum(1) > 0).long()
    data = from_tensors(inputs[:40], labels[:40], inputs[40:], labels[40:])
    task = potluck.Task(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), data, metrics=["f1"])
    job = {
        "task": "own",
        "fleet": {"devices": [{"preset": "laptop", "count": 2}]},
        "stop": {"rounds": 4},
        "evaluate": 2,
    }
    return potluck.simulate({**job, **settings}, task=task, folder=folder, threads=0)


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("recipe", ["fedavg", "ftpipehd"])
def test_the_table_has_a_row_for_each_round_whether_the_run_was_saved_or_not(recipe: str, tmp_path: Path) -> None:
    saved, unsaved = _result(tmp_path / "run", recipe=recipe).metrics, _result(recipe=recipe).metrics
    assert saved.to_dicts() == unsaved.to_dicts()
    assert saved.columns == ["round", "time_s", "bytes", "samples", "loss", "test_loss", "test_f1"]
    assert saved["round"] == [0, 1, 2, 3, 4]
    assert [value is not None for value in saved["loss"]] == [False, True, True, True, True]
    assert [value is not None for value in saved["test_f1"]] == [True, False, True, False, True]
    assert saved.better == {"test_loss": "lower", "test_f1": "higher"}
    assert len(saved) == len(list(saved)) == len(repr(saved).splitlines()) - 1 == saved._repr_html_().count("<tr>") - 1
    with pytest.raises(KeyError, match="is none of round, time_s"):
        saved["accuracy"]


def test_the_last_row_is_the_summary(tmp_path: Path) -> None:
    result = _result()
    assert result.metrics.rows[-1]["test_f1"] == result.summary["metrics"]["f1"]
    assert result.metrics.rows[-1]["samples"] == result.summary["samples"]


def test_long_tables_are_shown_in_part() -> None:
    table = MetricTable([{"round": round, "loss": 1.0 / (round + 1)} for round in range(100)])
    assert len(repr(table).splitlines()) == 12
    assert "…" in table._repr_html_()
    assert len(table.to_dicts()) == 100


def test_plots_are_drawn_with_matplotlib() -> None:
    pytest.importorskip("matplotlib")
    figure = _result().plot()
    assert [axis.get_title() for axis in figure.axes if axis.get_visible()] == [
        "f1 (higher is better)",
        "loss (lower is better)",
    ]


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib_plots_are_svg(tmp_path: Path) -> None:
    result = _result()
    picture = result.plot("f1")
    assert picture._repr_svg_().startswith("<svg ")
    assert "f1 (higher is better)" in picture.svg
    assert "loss" not in picture.svg
    assert picture.save(tmp_path / "f1.svg").read_text() == picture.svg
    with pytest.raises(potluck.UserError, match="the run has no metric 'r2', only loss, test_loss, test_f1"):
        result.plot("r2")


def test_a_notebook_shows_a_summary_with_charts() -> None:
    shown = _result(name="<b>bold</b>")._repr_html_()
    assert "&lt;b&gt;bold&lt;/b&gt;, fedavg: done, 4 rounds" in shown
    assert "<svg " in shown


def test_the_report_is_written_to_the_folder_of_the_run(tmp_path: Path) -> None:
    page = _result(tmp_path / "run").report()
    assert page == tmp_path / "run" / "report.html"
    assert "test_f1" in page.read_text()
    with pytest.raises(potluck.UserError, match="was not saved"):
        _result().report()


class _Handle:
    def __init__(self, shown: list[str], content: Any) -> None:
        self._shown = shown
        self.update(content)

    def update(self, content: Any) -> None:
        self._shown.append(content)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a notebook's output shows, one state after the other."""
    shown: list[str] = []
    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=None)  # type: ignore[attr-defined]
    display.HTML = str  # type: ignore[attr-defined]
    display.display = lambda content, display_id: _Handle(shown, content)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_progress_in_a_notebook_is_one_line_that_is_updated(notebook: list[str]) -> None:
    _result()
    assert len(notebook) >= 2
    assert 'value="1.000"' in notebook[-1]
    assert "fedavg: round 4/4" in notebook[-1]
    assert notebook[-1].count("done") == 1


def test_a_terminal_shows_nothing_of_its_own(notebook: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: types.SimpleNamespace())
    _result()
    assert notebook == []


def test_a_run_works_inside_an_event_loop_as_in_a_notebook() -> None:
    async def cell() -> potluck.Result:
        return _result()

    inside, outside = asyncio.run(cell()), _result()
    assert inside.status == "done", inside.reason
    assert inside.metrics.to_dicts() == outside.metrics.to_dicts()


def test_interrupting_a_notebook_stops_the_run_at_a_safe_point(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, waits, wait = threading.Event(), list[object](), Future.exception

    def wait_or_interrupt(running: Future[Any], timeout: float | None = None) -> BaseException | None:
        waits.append(running)
        if len(waits) == 1:
            raise KeyboardInterrupt
        return wait(running, timeout)

    async def cell() -> bool:
        return run_beside_event_loop(lambda: stop.wait(20), stop.set)

    monkeypatch.setattr(Future, "exception", wait_or_interrupt)
    assert asyncio.run(cell())
    assert len(waits) == 2


def test_errors_of_users_pass_the_thread() -> None:
    async def cell() -> None:
        run_beside_event_loop(lambda: int("no number"), lambda: None)

    with pytest.raises(ValueError, match="no number"):
        asyncio.run(cell())


def test_an_interrupted_coroutine_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, wait = threading.Event(), Future.exception

    async def forever() -> None:
        begun.set()
        await asyncio.sleep(60)

    def interrupt_once(running: Future[Any], timeout: float | None = None) -> BaseException | None:
        monkeypatch.setattr(Future, "exception", wait)
        begun.wait(20)
        raise KeyboardInterrupt

    async def cell() -> None:
        run_coroutine(forever())

    monkeypatch.setattr(Future, "exception", interrupt_once)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cell())

"""Runs a prepared job in a world and keeps what comes of it: the same steps and the same failures in both worlds."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from potluck.atomic_file import write_atomically
from potluck.errors import RunError, StorageError, UserError
from potluck.journal import Scalar
from potluck.loops.node import COORDINATOR
from potluck.loops.run_progress import RunOutcome
from potluck.report import render_report
from potluck.report.result_figures import MetricCurve, draw_matplotlib, draw_svg, summary_html
from potluck.run.best_model_file import BestModelFile
from potluck.run.metric_settings import best_metric
from potluck.run.metric_table import MetricTable, read_run_scalars
from potluck.run.notebook_thread import run_beside_event_loop
from potluck.run.prepared_job import PreparedJob
from potluck.run.run_store import RunStore
from potluck.user_code import describe_user_error
from potluck.worlds.device_error import DeviceError

__all__ = ["Result", "run_to_end"]


@dataclass(frozen=True)
class Result:
    """How a run ended, its summary, its folder, the trained model and its metrics; notebooks show it with charts."""

    status: str  # "done", "failed" or "interrupted"
    reason: str
    summary: dict[str, Any]
    folder: Path | None
    module: nn.Module | None
    scalars: Sequence[Scalar] = field(default=(), repr=False)  # of a run that was not saved

    @property
    def exit_code(self) -> int:
        return {"done": 0, "failed": 1, "interrupted": 130}[self.status]

    @cached_property
    def metrics(self) -> MetricTable:
        """The training loss and the metrics of every round, as a table."""
        saved = self.folder is not None and (self.folder / "journal.jsonl").exists()
        scalars = read_run_scalars(self.folder / "journal.jsonl") if saved and self.folder else self.scalars
        return MetricTable.from_scalars(scalars)

    def plot(self, *names: str) -> Any:
        """A chart for each metric, or for these: a figure of matplotlib or, without it, an SVG; notebooks show both."""
        curves = self._curves(names)
        try:
            return draw_matplotlib(curves)
        except ImportError:
            return draw_svg(curves)

    def report(self, path: Path | str | None = None) -> Path:
        """Write the HTML report, by default to `report.html` in the run's folder; returns its path."""
        if self.folder is None:
            raise RunError("this run was not saved, so there is nothing to report on; run it with folder=…")
        out = self.folder / "report.html" if path is None else Path(path)
        write_atomically(out, render_report([self.folder]).encode())
        return out

    def _curves(self, names: Sequence[str] = ()) -> list[MetricCurve]:
        table = self.metrics
        wanted = [name for given in names for name in _columns_of(given, table)] or table.names
        return [MetricCurve(name, *table.series(name), table.better.get(name, "")) for name in wanted]

    def _repr_html_(self) -> str:
        return summary_html(self.summary, self._curves())


def _columns_of(name: str, table: MetricTable) -> list[str]:
    """The columns of a metric: `loss` is measured in training and on held-out data."""
    found = [column for column in (name, f"test_{name}") if column in table.names]
    if not found:
        raise RunError(f"the run has no metric {name!r}, only {', '.join(table.names)}")
    return found


def run_to_end(prepared: PreparedJob, store: RunStore, world: Callable[[], RunOutcome]) -> Result:
    """Continue from the store's checkpoint if it has one, run, and save the model and the summary.

    Code of the user that raises ends the run as failed, wherever it ran; its traceback is kept as error.txt. Where the
    folder cannot be written, StorageError says what was lost.
    """
    try:
        result = _run_and_save(prepared, store, world)
    except BaseException:
        store.abandon()
        raise
    try:
        store.close()
    except StorageError as error:
        error.result = result
        raise
    return result


def _run_and_save(prepared: PreparedJob, store: RunStore, world: Callable[[], RunOutcome]) -> Result:
    started = time.perf_counter()
    if store.tensors is not None:
        prepared.server.restore(store.tensors)
    store.attach_tensors(prepared.server.tensors)
    best = best_metric(prepared.job, prepared.metrics)
    kept = None if best is None else BestModelFile(best, prepared.keep_best, prepared.build_best_module)
    store.attach_metrics(prepared.metrics, kept)
    outcome = run_beside_event_loop(lambda: _run_world(store, world), store.request_stop)
    module, model_summary = _save_model(prepared, store)
    summary = store.finish_run(outcome, time.perf_counter() - started, model_summary)
    return Result(outcome.status, outcome.reason, summary, store.folder, module, store.tally.run_scalars)


def _save_model(prepared: PreparedJob, store: RunStore) -> tuple[nn.Module | None, Mapping[str, Any]]:
    saved: list[tuple[nn.Module | None, Mapping[str, Any]]] = []
    if store.storage.attempt("trained model", lambda: saved.append(prepared.save_trained_model(store.folder))):
        return saved[0]
    return prepared.save_trained_model(None)  # in memory only


def _run_world(store: RunStore, world: Callable[[], RunOutcome]) -> RunOutcome:
    with _single_threaded_torch():
        try:
            return world()
        except (UserError, StorageError):
            raise
        except DeviceError as error:
            return _fail_run(store, str(error), error.trace)
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            return _fail_run(store, f"{COORDINATOR}: {describe_user_error(error)}", trace)


def _fail_run(store: RunStore, reason: str, trace: str) -> RunOutcome:
    store.write_error(trace)
    return RunOutcome("failed", reason)


@contextmanager
def _single_threaded_torch() -> Iterator[None]:
    """Each of our threads computes on one core, so that results do not depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""Shows the progress of a run: a live table on a terminal, a line now and then elsewhere, or nothing.

Two clocks appear, always named: the run's own time (simulated, or since a live run began) and wall-clock time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, Self

import typer

from potluck.cli.console import open_console
from potluck.cli.device_table import DeviceRow, device_labels, device_rows, device_table
from potluck.cli.number_format import format_bytes, format_seconds, score_texts
from potluck.cli.sparkline import BoundedCurve, draw_sparkline

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from potluck.cli.device_table import JoiningDevices
    from potluck.run.run_store import RunStore

__all__ = ["LineDisplay", "ProgressDisplay", "ProgressEstimate", "SilentDisplay", "TableDisplay", "choose_display"]

_DRAWING_FRACTION = 0.01  # of the wall-clock time, at most


class ProgressDisplay(Protocol):
    """Is called after every round while it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def __call__(self, store: RunStore, now: float) -> None: ...

    def show_joining(self, joining: JoiningDevices) -> None:
        """Show which devices have joined, before the first round."""

    def elapsed_s(self) -> float:
        """Wall-clock seconds since the display was made, as the table and the summary show them."""


def choose_display(quiet: bool, stopping: Callable[[], bool] = lambda: False) -> ProgressDisplay:
    """The display that suits what stderr is connected to."""
    if quiet:
        return SilentDisplay()
    console = open_console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        return TableDisplay(console, stopping)
    return LineDisplay(console)


class ProgressEstimate:
    """Estimates the speed and the remaining time of a run from the first round that it observes."""

    def __init__(self) -> None:
        self._started_at = 0.0
        self._first_round = -1
        self._first_fraction = 0.0
        self.budget_fraction = 0.0

    def observe_round(self, store: RunStore, now: float) -> None:
        self.budget_fraction = _budget_fraction(store, now)
        if self._first_round < 0:
            self._started_at = time.perf_counter()
            self._first_round = store.progress.round
            self._first_fraction = self.budget_fraction

    def rounds_per_s(self, store: RunStore) -> float:
        elapsed = time.perf_counter() - self._started_at
        return (store.progress.round - self._first_round) / elapsed if elapsed > 0 else 0.0

    def remaining_s(self) -> float | None:
        """Wall-clock seconds until the budget is used up; a target may be reached earlier."""
        done = self.budget_fraction - self._first_fraction
        if done <= 0:
            return None
        return (time.perf_counter() - self._started_at) * (1 - self.budget_fraction) / done

    def status_line(self, store: RunStore, now: float) -> str:
        """The state of the run in one line: its own time first, then wall-clock figures."""
        progress, stop = store.progress, store.job.stop
        round_text = f"{progress.round}/{stop.rounds}" if stop.rounds else str(progress.round)
        simulated = not store.is_live
        figures = [f"{store.job.recipe}: round {round_text} at {format_seconds(now)}{' simulated' * simulated}"]
        figures += score_texts(progress.score)
        figures.append(f"{format_bytes(progress.traffic_bytes)} sent")
        speed = []
        if (rate := self.rounds_per_s(store)) > 0:
            speed.append(f"{rate:.3g} rounds/s")
        if (left := self.remaining_s()) is not None:
            speed.append(f"{'at most ' if stop.targets else ''}{format_seconds(left)} left")
        if speed and simulated:
            return f"{', '.join(figures)}; wall-clock: {', '.join(speed)}"
        return ", ".join([*figures, *speed])


def _budget_fraction(store: RunStore, now: float) -> float:
    """The fraction of the budget that is used up, by the stopping rule that is nearest."""
    progress, stop = store.progress, store.job.stop
    used = [0.0]
    if stop.rounds:
        used.append(progress.round / stop.rounds)
    if stop.time:
        used.append(now / stop.time)
    if stop.bytes:
        used.append(progress.traffic_bytes / stop.bytes)
    return min(max(used), 1.0)


class SilentDisplay:
    """Shows nothing, except which devices a live run waits for."""

    def __init__(self) -> None:
        self._started_at = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __call__(self, store: RunStore, now: float) -> None:
        pass

    def show_joining(self, joining: JoiningDevices) -> None:
        typer.echo(joining.status_line(), err=True)

    def elapsed_s(self) -> float:
        return time.perf_counter() - self._started_at


class LineDisplay(SilentDisplay):
    """Prints a line for every tenth of the budget, and one every few seconds."""

    def __init__(self, console: Console, least_s: float = 0.5, most_s: float = 5.0) -> None:
        super().__init__()
        self._console = console
        self._least_s = least_s
        self._most_s = most_s
        self._estimate = ProgressEstimate()
        self._shown_at = time.perf_counter()
        self._tenth = 0

    def __call__(self, store: RunStore, now: float) -> None:
        self._estimate.observe_round(store, now)
        waited = time.perf_counter() - self._shown_at
        if waited < self._least_s:
            return
        tenth = int(10 * self._estimate.budget_fraction)
        if tenth > self._tenth or waited >= self._most_s:
            self._tenth = tenth
            self._shown_at = time.perf_counter()
            self._console.print(self._estimate.status_line(store, now), markup=False, soft_wrap=True)


class TableDisplay(SilentDisplay):
    """Draws a table of all devices: what each is doing and where its time went.

    A dedicated thread draws, so that a long round does not look like a hang. It draws at most four times a second, and
    less often where drawing takes long, so that it does not slow the run down.
    """

    def __init__(self, console: Console, stopping: Callable[[], bool]) -> None:
        from rich.live import Live

        super().__init__()
        self._stopping = stopping
        self._estimate = ProgressEstimate()
        self._metric_curve = BoundedCurve()
        self._console = console
        self._rows: list[DeviceRow] = []
        self._groups: Mapping[str, str] = {}
        self._last: tuple[RunStore, float] | None = None
        self._updated_at = self._started_at
        self._joining: JoiningDevices | None = None
        self._over = threading.Event()
        self._drawing_thread = threading.Thread(target=self._refresh_loop, name="potluck-table", daemon=True)
        self._live = Live(console=console, auto_refresh=False, transient=True, get_renderable=self._render_display)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        self._drawing_thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._drawing_thread.join()
        self._live.stop()

    def __call__(self, store: RunStore, now: float) -> None:
        self._estimate.observe_round(store, now)
        score = store.progress.score
        if score:
            shown = min(score, key=lambda name: (name != "accuracy", name == "loss"))
            self._metric_curve.add_point(now, score[shown])
        self._updated_at = time.perf_counter()
        self._last = store, now

    def show_joining(self, joining: JoiningDevices) -> None:
        self._joining = joining

    def _refresh_loop(self) -> None:
        pause = 0.25
        while not self._over.wait(pause):
            started = time.thread_time()
            self._live.refresh()
            pause = min(max(0.25, (time.thread_time() - started) / _DRAWING_FRACTION), 5.0)

    def _render_display(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        elapsed = f"{format_seconds(self.elapsed_s())} wall-clock"
        if self._last is None and self._joining is not None:
            head = Text(self._joining.status_line(), style="bold", no_wrap=True, overflow="ellipsis")
            return Group(head, self._joining.status_table(), Text(f"{elapsed}; Ctrl-C stops the run", style="dim"))
        if self._last is None:
            return Text(f"reading the data and building the model, {elapsed}", style="dim")
        store, now = self._last[0], self._run_time(*self._last)
        if not self._rows:
            self._rows, self._groups = device_rows(store.job.fleet), device_labels(store.job)
        head = Text(self._estimate.status_line(store, now), style="bold", no_wrap=True, overflow="ellipsis")
        curve = Text(draw_sparkline(self._metric_curve.points, 60, now), style="green", no_wrap=True)
        table = device_table(self._rows, store.tally, now, doing=True, width=self._console.width, assigned=self._groups)
        hint = "stopping at a safe point …" if self._stopping() else "Ctrl-C stops the run, which can then be resumed"
        return Group(head, curve, table, Text(f"{elapsed}; {hint}", style="dim"))

    def _run_time(self, store: RunStore, now: float) -> float:
        """The run's own time; in a live run it advances while a round is open."""
        return now + time.perf_counter() - self._updated_at if store.is_live else now

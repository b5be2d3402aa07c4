"""What is shown while a run goes: a live table on a terminal, now and then a line elsewhere, or nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, Self

import typer

from potluck.cli.console import open_console
from potluck.cli.device_table import DeviceRow, class_group_labels, device_rows, device_table
from potluck.cli.number_format import format_seconds
from potluck.cli.progress_estimate import ProgressEstimate
from potluck.cli.sparkline import BoundedCurve, draw_sparkline

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from potluck.cli.joining_devices import JoiningDevices
    from potluck.run.run_store import RunStore

__all__ = ["LineDisplay", "ProgressDisplay", "SilentDisplay", "TableDisplay", "choose_display"]

_SHARE_OF_TIME = 0.01  # that drawing may take


class ProgressDisplay(Protocol):
    """Told of every round while it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def __call__(self, keeper: RunStore, now: float) -> None: ...

    def show_joining(self, muster: JoiningDevices) -> None:
        """Who is here, before the first round."""


def choose_display(quiet: bool, stopping: Callable[[], bool] = lambda: False) -> ProgressDisplay:
    """What suits the place that stderr leads to."""
    console = open_console(stderr=True)
    if quiet:
        return SilentDisplay()
    return (
        TableDisplay(console, stopping)
        if console.is_terminal and not console.is_dumb_terminal
        else LineDisplay(console)
    )


class SilentDisplay:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __call__(self, keeper: RunStore, now: float) -> None:
        pass

    def show_joining(self, muster: JoiningDevices) -> None:
        """Not even in silence does a run wait for somebody without saying so."""
        typer.echo(muster.status_line(), err=True)


class LineDisplay(SilentDisplay):
    """A line for every tenth of the way, and one every few seconds."""

    def __init__(self, console: Console, least_s: float = 0.5, most_s: float = 5.0) -> None:
        self._console = console
        self._least_s = least_s
        self._most_s = most_s
        self._estimate = ProgressEstimate()
        self._shown_at = time.perf_counter()
        self._tenth = 0

    def __call__(self, keeper: RunStore, now: float) -> None:
        self._estimate.observe_round(keeper, now)
        waited = time.perf_counter() - self._shown_at
        if waited < self._least_s:
            return
        tenth = int(10 * self._estimate.budget_fraction)
        if tenth > self._tenth or waited >= self._most_s:
            self._tenth = tenth
            self._shown_at = time.perf_counter()
            self._console.print(self._estimate.status_line(keeper, now), markup=False, soft_wrap=True)


class TableDisplay(SilentDisplay):
    """Every device with what it is at and where its time went.

    A thread of its own draws, so that a long round does not look dead; it draws at most four times a second and less
    often where drawing takes long, so that the run hardly notices.
    """

    def __init__(self, console: Console, stopping: Callable[[], bool]) -> None:
        from rich.live import Live

        self._stopping = stopping
        self._began = time.perf_counter()
        self._estimate = ProgressEstimate()
        self._accuracy_curve = BoundedCurve()
        self._console = console
        self._rows: list[DeviceRow] = []
        self._groups: Mapping[str, str] = {}
        self._last: tuple[RunStore, float] | None = None
        self._updated_at = self._began
        self._joining: JoiningDevices | None = None
        self._over = threading.Event()
        self._drawing_thread = threading.Thread(target=self._refresh_loop, name="potluck-picture", daemon=True)
        self._live = Live(console=console, auto_refresh=False, transient=True, get_renderable=self._render_display)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        self._drawing_thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._drawing_thread.join()
        self._live.stop()

    def __call__(self, keeper: RunStore, now: float) -> None:
        self._estimate.observe_round(keeper, now)
        if "accuracy" in keeper.progress.score:
            self._accuracy_curve.add_point(now, keeper.progress.score["accuracy"])
        self._updated_at = time.perf_counter()
        self._last = keeper, now

    def show_joining(self, muster: JoiningDevices) -> None:
        self._joining = muster

    def _refresh_loop(self) -> None:
        pause = 0.25
        while not self._over.wait(pause):
            began = time.thread_time()
            self._live.refresh()
            pause = min(max(0.25, (time.thread_time() - began) / _SHARE_OF_TIME), 5.0)

    def _render_display(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        here = format_seconds(time.perf_counter() - self._began)
        if self._last is None and self._joining is not None:
            head = Text(self._joining.status_line(), style="bold", no_wrap=True, overflow="ellipsis")
            return Group(head, self._joining.status_table(), Text(f"{here} here; Ctrl-C stops it", style="dim"))
        if self._last is None:
            return Text(f"reading the data and building the model, {here}", style="dim")
        keeper, now = self._last
        if not self._rows:
            self._rows, self._groups = device_rows(keeper.job.fleet), class_group_labels(keeper.job)
        head = Text(self._estimate.status_line(keeper, now), style="bold", no_wrap=True, overflow="ellipsis")
        curve = Text(draw_sparkline(self._accuracy_curve.points, 60, now), style="green", no_wrap=True)
        hint = "stopping at a safe point …" if self._stopping() else "Ctrl-C stops it where it can be resumed"
        foot = Text(f"{here} here; {hint}", style="dim")
        return Group(head, curve, self._render_table(keeper, now), foot)

    def _render_table(self, keeper: RunStore, now: float) -> RenderableType:
        """In a live run time goes on while a round is open."""
        from potluck.run.live_status import is_live_run

        if is_live_run(keeper.folder):
            now += time.perf_counter() - self._updated_at
        width = self._console.width
        return device_table(self._rows, keeper.tally, now, doing=True, width=width, parts=self._groups)

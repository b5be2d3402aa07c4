"""What is shown while a run goes: a live table on a terminal, now and then a line elsewhere, or nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, Self

import typer

from potluck.cli.console import open_console
from potluck.cli.figures import seconds
from potluck.cli.pace import Pace
from potluck.cli.rows import Row, groups, rows, table
from potluck.cli.sparkline import Trail, sparkline

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from potluck.cli.muster import Muster
    from potluck.run.keeper import Keeper

__all__ = ["Lines", "Picture", "Progress", "Silent", "progress"]

_SHARE_OF_TIME = 0.01  # that drawing may take


class Progress(Protocol):
    """Told of every round while it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def __call__(self, keeper: Keeper, now: float) -> None: ...

    def gather(self, muster: Muster) -> None:
        """Who is here, before the first round."""


def progress(quiet: bool, stopping: Callable[[], bool] = lambda: False) -> Progress:
    """What suits the place that stderr leads to."""
    console = open_console(stderr=True)
    if quiet:
        return Silent()
    return Picture(console, stopping) if console.is_terminal and not console.is_dumb_terminal else Lines(console)


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __call__(self, keeper: Keeper, now: float) -> None:
        pass

    def gather(self, muster: Muster) -> None:
        """Not even in silence does a run wait for somebody without saying so."""
        typer.echo(muster.line(), err=True)


class Lines(Silent):
    """A line for every tenth of the way, and one every few seconds."""

    def __init__(self, console: Console, least_s: float = 0.5, most_s: float = 5.0) -> None:
        self._console = console
        self._least_s = least_s
        self._most_s = most_s
        self._pace = Pace()
        self._shown_at = time.perf_counter()
        self._tenth = 0

    def __call__(self, keeper: Keeper, now: float) -> None:
        self._pace.see(keeper, now)
        waited = time.perf_counter() - self._shown_at
        if waited < self._least_s:
            return
        tenth = int(10 * self._pace.share)
        if tenth > self._tenth or waited >= self._most_s:
            self._tenth = tenth
            self._shown_at = time.perf_counter()
            self._console.print(self._pace.line(keeper, now), markup=False, soft_wrap=True)


class Picture(Silent):
    """Every device with what it is at and where its time went.

    A thread of its own draws, so that a long round does not look dead; it draws at most four times a second and less
    often where drawing takes long, so that the run hardly notices.
    """

    def __init__(self, console: Console, stopping: Callable[[], bool]) -> None:
        from rich.live import Live

        self._stopping = stopping
        self._began = time.perf_counter()
        self._pace = Pace()
        self._trail = Trail()
        self._console = console
        self._rows: list[Row] = []
        self._groups: Mapping[str, str] = {}
        self._last: tuple[Keeper, float] | None = None
        self._told_at = self._began
        self._muster: Muster | None = None
        self._over = threading.Event()
        self._artist = threading.Thread(target=self._draw_on, name="potluck-picture", daemon=True)
        self._live = Live(console=console, auto_refresh=False, transient=True, get_renderable=self._draw)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        self._artist.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._artist.join()
        self._live.stop()

    def __call__(self, keeper: Keeper, now: float) -> None:
        self._pace.see(keeper, now)
        if "accuracy" in keeper.books.score:
            self._trail.add(now, keeper.books.score["accuracy"])
        self._told_at = time.perf_counter()
        self._last = keeper, now

    def gather(self, muster: Muster) -> None:
        self._muster = muster

    def _draw_on(self) -> None:
        pause = 0.25
        while not self._over.wait(pause):
            began = time.thread_time()
            self._live.refresh()
            pause = min(max(0.25, (time.thread_time() - began) / _SHARE_OF_TIME), 5.0)

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        here = seconds(time.perf_counter() - self._began)
        if self._last is None and self._muster is not None:
            head = Text(self._muster.line(), style="bold", no_wrap=True, overflow="ellipsis")
            return Group(head, self._muster.table(), Text(f"{here} here; Ctrl-C stops it", style="dim"))
        if self._last is None:
            return Text(f"reading the data and building the model, {here}", style="dim")
        keeper, now = self._last
        if not self._rows:
            self._rows, self._groups = rows(keeper.job.fleet), groups(keeper.job)
        head = Text(self._pace.line(keeper, now), style="bold", no_wrap=True, overflow="ellipsis")
        curve = Text(sparkline(self._trail.points, 60, now), style="green", no_wrap=True)
        hint = "stopping at a safe point …" if self._stopping() else "Ctrl-C stops it where it can be resumed"
        foot = Text(f"{here} here; {hint}", style="dim")
        return Group(head, curve, self._table(keeper, now), foot)

    def _table(self, keeper: Keeper, now: float) -> RenderableType:
        """In a live run time goes on while a round is open."""
        from potluck.run.ticket import is_live

        if is_live(keeper.folder):
            now += time.perf_counter() - self._told_at
        width = self._console.width
        return table(self._rows, keeper.tally, now, doing=True, width=width, parts=self._groups)

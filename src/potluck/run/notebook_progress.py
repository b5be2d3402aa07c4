"""Shows the progress of a run in a Jupyter notebook: one line with a bar, updated in place."""

from __future__ import annotations

import html
import sys
import time
from typing import TYPE_CHECKING, Any

from potluck.units import format_metric, format_seconds

if TYPE_CHECKING:
    from potluck.run.run_store import RunStore

__all__ = ["NotebookProgress", "is_notebook"]

_REDRAW_S = 0.3


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook, not a terminal or a script."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class NotebookProgress:
    """Redraws at most three times a second, and once at the end."""

    def __init__(self) -> None:
        self._display: Any = None
        self._drawn_at = 0.0

    def show_round(self, store: RunStore, now: float) -> None:
        if time.monotonic() - self._drawn_at >= _REDRAW_S:
            self._draw(store, now, "")

    def show_end(self, store: RunStore, status: str) -> None:
        self._draw(store, store.now, status)

    def _draw(self, store: RunStore, now: float, status: str) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found, unused-ignore]

        content = HTML(progress_html(store, now, status))
        if self._display is None:
            self._display = display(content, display_id=True)
        else:
            self._display.update(content)
        self._drawn_at = time.monotonic()


def progress_html(store: RunStore, now: float, status: str = "") -> str:
    """A bar and the state of the run in one line."""
    progress, stop = store.progress, store.job.stop
    used = [progress.round / stop.rounds if stop.rounds else 0.0, now / stop.time if stop.time else 0.0]
    fraction = 1.0 if status == "done" else min(max(used), 1.0)
    rounds = f"{progress.round}/{stop.rounds}" if stop.rounds else str(progress.round)
    metrics = [f"{name} {format_metric(name, value)}" for name, value in progress.score.items()]
    state = f"{store.job.recipe}: round {rounds} at {format_seconds(now)}"
    texts = [state, *metrics[:5], *([status] if status else [])]
    return (
        f'<div style="font-family:monospace"><progress value="{fraction:.3f}" max="1" style="width:12em"></progress> '
        f"{html.escape(', '.join(texts))}</div>"
    )

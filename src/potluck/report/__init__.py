"""Reports of runs: a self-contained HTML file, a live page, exports. This package only reads run folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from potluck.journal import RecordDecoder, read_journal, warn_of_unreadable
from potluck.report.html_page import render_page
from potluck.report.run_folder import RunFolder, open_run
from potluck.report.run_history import RunHistory
from potluck.report.run_view import build_run_view

__all__ = ["load_run_view", "render_report"]


def load_run_view(run: RunFolder) -> dict[str, Any]:
    """The view of one run: everything that a page shows of it."""
    decoder, history = RecordDecoder(), RunHistory()
    history.add_records(read_journal(run.journal, decoder))
    history.unreadable = decoder.unreadable
    warn_of_unreadable(run.path, decoder.unreadable)
    return build_run_view(history, run)


def render_report(runs: Sequence[Path]) -> str:
    """The HTML report of one run, or a comparison of several."""
    views = [load_run_view(open_run(path)) for path in runs]
    title = " · ".join(dict.fromkeys(f"{view['title']}, {view['recipe']}" for view in views))
    return render_page("report", f"Potluck: {title}", views)

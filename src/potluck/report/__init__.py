"""Pictures of runs: one HTML file, a page that follows them, exports. This room only reads journals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from potluck.journal import read_journal
from potluck.report.html_page import render_page
from potluck.report.run_folder import RunFolder, open_run
from potluck.report.run_history import RunHistory
from potluck.report.run_view import build_run_view

__all__ = ["load_run_view", "render_report"]


def load_run_view(run: RunFolder) -> dict[str, Any]:
    """What there is to show of one run."""
    return build_run_view(RunHistory().add_records(read_journal(run.journal)), run)


def render_report(runs: Sequence[Path]) -> str:
    """The report of one run, or of several beside each other."""
    views = [load_run_view(open_run(path)) for path in runs]
    title = " · ".join(dict.fromkeys(f"{one['title']}, {one['recipe']}" for one in views))
    return render_page("report", f"Potluck: {title}", views)

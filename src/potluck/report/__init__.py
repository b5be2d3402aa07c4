"""Pictures of runs: one HTML file, a page that follows them, exports. This room only reads journals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from potluck.journal import read
from potluck.report.folder import RunFolder, open_run
from potluck.report.page import page
from potluck.report.story import Story
from potluck.report.view import view

__all__ = ["html", "look"]


def look(run: RunFolder) -> dict[str, Any]:
    """What there is to show of one run."""
    return view(Story().tell(read(run.journal)), run)


def html(runs: Sequence[Path]) -> str:
    """The report of one run, or of several beside each other."""
    views = [look(open_run(path)) for path in runs]
    title = " · ".join(dict.fromkeys(f"{one['title']}, {one['recipe']}" for one in views))
    return page("report", f"Potluck: {title}", views)

"""The figures of a page as PNG files, drawn by the page itself in a browser without a window."""

from __future__ import annotations

import base64
from pathlib import Path

from potluck.report.headless_browser import HeadlessBrowser

__all__ = ["save_figure_images"]

_FINE = 2.0  # pixels of the picture for one of the page


def save_figure_images(page: Path, folder: Path, width: int = 1240) -> list[Path]:
    """One PNG for each figure of a report that was written to a file."""
    folder.mkdir(parents=True, exist_ok=True)
    with HeadlessBrowser(width, 900) as browser:
        browser.resize_page(width, 900, scale=_FINE)
        browser.open_file(page)
        found: dict[str, str] = browser.evaluate("potluckFigures()")
    paths = []
    for name, address in found.items():
        path = folder / f"{name}.png"
        path.write_bytes(base64.b64decode(address.partition(",")[2]))
        paths.append(path)
    return paths

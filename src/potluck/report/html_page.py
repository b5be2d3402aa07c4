"""Renders self-contained HTML pages: styles, scripts and data are inlined, and the page's policy forbids requests.

Data is embedded as JSON with `<` escaped and shown as text nodes only, so no name can become markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

__all__ = ["render_page"]

_SCRIPTS = ("format", "draw", "lines", "bars", "map", "timeline", "bands", "export", "sections", "runs", "page")
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; connect-src {}"
)
_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}
</style>
</head>
<body>
<noscript>This page needs JavaScript to draw its charts; the numbers are in summary.json in the run folder.</noscript>
<main id="page" aria-busy="true"></main>
<script id="data" type="application/json">{data}</script>
<script>
{script}
</script>
</body>
</html>
"""


def render_page(kind: str, title: str, runs: Sequence[Mapping[str, Any]] = (), served: bool = False) -> str:
    """A page of this kind (`report`, `live` or `runs`); a served page may send requests to its own server."""
    policy = _POLICY.format("'self'" if served else "'none'")
    data = _embed_json({"kind": kind, "title": title, "runs": list(runs)})
    return _FRAME.format(policy=policy, title=escape(title), style=_page_style(), data=data, script=_page_script())


def _embed_json(data: object) -> str:
    """JSON that is safe inside a script element."""
    written = msgspec.json.encode(data).decode()
    return written.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _page_style() -> str:
    return _read_asset("page.css")


@cache
def _page_script() -> str:
    body = "\n".join(_read_asset(f"{name}.js") for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{body}\n}})();'


def _read_asset(name: str) -> str:
    return (files("potluck.report") / "assets" / name).read_text(encoding="utf-8")

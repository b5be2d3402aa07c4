"""Renders self-contained HTML pages: styles, scripts and data are inlined, and the page's policy forbids requests.

Data is embedded as JSON with `<` escaped and shown as text nodes only, so no name can become markup.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

__all__ = ["label_runs", "render_page"]


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
<noscript>This page needs JavaScript to draw its charts; the figures are in summary.json in the run folder.</noscript>
<main id="page" aria-busy="true"></main>
<script id="data" type="application/json">{data}</script>
<script>
{script}
</script>
</body>
</html>
"""

_MAX_SETTINGS = 3


def render_page(kind: str, title: str, runs: Sequence[Mapping[str, Any]] = (), served: bool = False) -> str:
    """A page of this kind (`report`, `live` or `runs`); a served page may send requests to its own server."""
    policy = _POLICY.format("'self'" if served else "'none'")
    data = _embed_json({"kind": kind, "title": title, "runs": label_runs(runs) if len(runs) > 1 else list(runs)})
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


def label_runs(views: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The views, each with a `label` that no other has; live runs are marked."""
    names = [view["recipe"] or view["id"] for view in views]
    live = [view["world"] == "live" for view in views]
    settings = [dict(_flat_settings(_parse_job(view["job"]))) for view in views]
    labels = [
        f"{name}{_differences(index, settings, [other == name for other in names])}{' (live)' * is_live}"
        for index, (name, is_live) in enumerate(zip(names, live, strict=True))
    ]
    counts = Counter(labels)
    return [
        {**view, "label": label if counts[label] == 1 else f"{label}, {view['id']}"}
        for view, label in zip(views, labels, strict=True)
    ]


def _differences(index: int, settings: Sequence[Mapping[str, Any]], same_recipe: Sequence[bool]) -> str:
    """The settings in which this run differs from others of its recipe, such as `, seed 1`."""
    group = [own for own, same in zip(settings, same_recipe, strict=True) if same]
    keys = [key for key in settings[index] if any(other.get(key) != settings[index][key] for other in group)]
    texts = [f", {key.rpartition('.')[2]} {settings[index][key]}" for key in keys[:_MAX_SETTINGS]]
    return "".join(texts) + (", …" if len(keys) > _MAX_SETTINGS else "")


def _flat_settings(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its dotted key; lists count as one value."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat_settings(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value if not isinstance(value, list) else f"of {len(value)}"


def _parse_job(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}

"""Renders self-contained HTML pages: styles, scripts and data are inlined, and the page's policy forbids requests.

Data is embedded as JSON with `<` escaped and shown as text nodes only, so no name can become markup.
"""

from __future__ import annotations

import base64
import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from potluck.text_escaping import UNSAFE_CHARACTER, escape_text

__all__ = ["encode_shown", "label_runs", "page_policy", "render_page"]


_SCRIPTS = ("format", "draw", "lines", "bars", "map", "timeline", "bands", "export", "sections", "runs", "page")
_POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data: blob:;"
    " connect-src {connect}; base-uri 'none'; form-action 'none'"
)
_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<noscript>This page needs JavaScript to draw its charts; the figures are in summary.json in the run folder.</noscript>
<main id="page" aria-busy="true"></main>
<script id="data" type="application/json">{data}</script>
<script>{script}</script>
</body>
</html>
"""

_MAX_SETTINGS = 3
_CONTROLS = re.compile(r"\\u[0-9a-f]{4}|\\.|" + UNSAFE_CHARACTER.pattern)


def render_page(kind: str, title: str, runs: Sequence[Mapping[str, Any]] = (), served: bool = False) -> str:
    """A page of this kind (`report`, `live` or `runs`); a served page may send requests to its own server."""
    policy = page_policy(served)
    data = _embed_json({"kind": kind, "title": title, "runs": label_runs(runs) if len(runs) > 1 else list(runs)})
    return _FRAME.format(policy=policy, title=escape(title), style=_page_style(), data=data, script=_page_script())


@cache
def page_policy(served: bool = False) -> str:
    """The Content-Security-Policy of a page: its own script and style, by their digests, and nothing else."""
    connect = "'self'" if served else "'none'"
    return _POLICY.format(script=_digest(_page_script()), style=_digest(_page_style()), connect=connect)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def encode_shown(data: object) -> bytes:
    """JSON for a page, in which characters that a browser would act on are written out; line ends remain."""
    return _CONTROLS.sub(_write_out_control, msgspec.json.encode(data).decode()).encode()


def _write_out_control(match: re.Match[str]) -> str:
    written = match[0]
    if written.startswith("\\"):  # JSON's own escape; only those of control characters are text for us
        is_control = written.startswith("\\u") or written in ("\\b", "\\f", "\\r")
        return "\\" + written if is_control else written
    return escape_text(written).replace("\\", "\\\\")


def _embed_json(data: object) -> str:
    """JSON that is safe inside a script element."""
    return encode_shown(data).decode().replace("<", "\\u003c")


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

"""Names the runs of a comparison by what differs between them: the recipe, the world, then other settings."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["label_runs"]

_MAX_SETTINGS = 3


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

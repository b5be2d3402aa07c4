"""The frozen settings of one run: read from TOML, written back to TOML, nothing left implicit.

defaults ◀ recipe ◀ job.toml ◀ --set a.b=c          what stands further right wins

A resolved job stands alone: traces are named by their whole path, explored tables and device profiles replace their
file names.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomli_w

from potluck import recipes
from potluck.data import Source, parse
from potluck.data.data_splits import IidSplit, Split
from potluck.data.streams.settings import StreamSettings
from potluck.errors import DataError, RunError, SettingError
from potluck.fleet import Fleet
from potluck.fleet.compute_profile import ProfiledLayer
from potluck.loops.pipeline.settings import Pipeline
from potluck.loops.settings import Rounds
from potluck.planning.pareto_table import ParetoTable
from potluck.settings import Settings, apply_override, decode_settings, encode_settings, merge_tables, part_kinds
from potluck.task import TaskSettings
from potluck.units import Bytes, Seconds

__all__ = ["Job", "StopRules", "built_in_fleets", "dump_job", "load_job", "load_task_settings", "make"]

Count = Annotated[int, msgspec.Meta(ge=0)]
_DEVICE_GROUP = re.compile(r"fleet\.devices\[\d+\]")


class StopRules(Settings, frozen=True, kw_only=True):
    """`[stop]`: whichever comes first ends the run."""

    rounds: Annotated[int, msgspec.Meta(ge=1)] | None = None
    time: Seconds | None = None
    bytes: Bytes | None = None
    accuracy: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] | None = None

    def __post_init__(self) -> None:
        if self.rounds is None and self.time is None and self.bytes is None:
            raise ValueError(
                "give at least one budget: `rounds`, `time` or `bytes` (a target `accuracy` alone may never come)"
            )


class Job(Settings, frozen=True, kw_only=True):
    """`job.toml`."""

    task: TaskSettings | str  # a table, or `package.module:function` that returns a potluck.Task
    fleet: Fleet
    stop: StopRules
    recipe: str = "fedavg"
    rounds: Rounds = Rounds()
    pipeline: Pipeline | None = None  # the layers are laid out over the devices; one round is one batch
    split: Split = IidSplit()
    stream: StreamSettings | None = (
        None  # where data streams in; without it a device has all of its data from the start
    )
    seed: Count = 0
    start: str | None = None  # the numbers to begin with: a run's folder or a .safetensors file; None: fresh ones
    name: str = ""
    evaluate: Count = 1  # score the model every so many rounds (0: only at the end)
    checkpoint: Count = 10  # save every so many rounds (0: only where the run ends)
    timing_only: bool = False  # no mathematics: the same protocol, bytes and seconds
    samples: Annotated[int, msgspec.Meta(ge=1)] = 500  # per device, where timing only needs a number

    def __post_init__(self) -> None:
        if self.rounds.least > len(self.fleet.members):
            raise SettingError(
                "rounds.least", f"{self.rounds.least} devices are more than the fleet has ({len(self.fleet.members)})"
            )
        for key in ("retry", "patience"):
            if not getattr(self.rounds, key) > 0:
                raise SettingError(f"rounds.{key}", "must be above 0")

    @property
    def title(self) -> str:
        return self.name or (self.task if isinstance(self.task, str) else self.task.name)


def make(tables: Mapping[str, Any], overrides: Sequence[str] = (), folder: Path | None = None) -> Job:
    """A job from plain tables: its recipe goes below, the overrides on top.

    Files that the tables name are looked for in `folder`, those that an override names in the current folder.
    """
    raw: dict[str, Any] = dict(tables)
    if isinstance(raw.get("fleet"), str):
        raw["fleet"] = _load_fleet_tables(raw["fleet"], folder)
    for assignment in overrides:
        raw = merge_tables(raw, _mark_override_text(apply_override({}, assignment)))
    if isinstance(raw.get("fleet"), str):
        raw["fleet"] = _load_fleet_tables(raw["fleet"], folder)
    name = raw.get("recipe", "fedavg")
    if not isinstance(name, str):
        raise SettingError("recipe", f"expected a name, got {name!r}")
    raw = _expand_data_source(merge_tables(recipes.find_recipe(name).settings, raw))
    return decode_settings(_resolve_files(raw, folder or Path()), Job)


def load_job(path: Path, overrides: Sequence[str] = ()) -> Job:
    """The job that a file describes."""
    return make(_read_toml(path), overrides, path.parent)


def load_task_settings(path: Path) -> TaskSettings | str:
    """The task that a job file describes; the rest of the file is not checked."""
    raw = _expand_data_source(_read_toml(path))
    if "task" not in raw:
        raise SettingError("task", f"{path} has no task")
    task = _resolve_files(raw["task"], path.parent, "task")
    return task if isinstance(task, str) else decode_settings(task, TaskSettings, "task")


def dump_job(job: Job) -> str:
    """The whole job as TOML; reading it gives an equal job."""
    return tomli_w.dumps(encode_settings(job))


def built_in_fleets() -> dict[str, str]:
    """The fleets that come with Potluck, by name, with what they are."""
    found = {}
    for entry in sorted(resources.files("potluck.fleet").joinpath("fleets").iterdir(), key=lambda entry: entry.name):
        first = entry.read_text().splitlines()[0]
        found[entry.name.removesuffix(".toml")] = first.lstrip("# ")
    return found


def _load_fleet_tables(name: str, folder: Path | None) -> dict[str, Any]:
    if name.endswith(".toml"):
        path = _resolve_path(name, folder or Path())
        return dict(_resolve_files(_read_toml(path, "fleet"), path.parent, "fleet"))
    if name not in built_in_fleets():
        raise SettingError("fleet", f"{name!r} is neither a .toml file nor one of {', '.join(built_in_fleets())}")
    return tomllib.loads(resources.files("potluck.fleet").joinpath("fleets", f"{name}.toml").read_text())


def _expand_data_source(raw: dict[str, Any]) -> dict[str, Any]:
    """The same tables, where data that is named with its options (`synthetic:classes=4`) is taken apart."""
    task = raw.get("task")
    if not isinstance(task, Mapping) or not isinstance(task.get("data"), str):
        return raw
    if task["data"].partition(":")[0] not in part_kinds(Source):
        return raw
    try:
        return {**raw, "task": {**task, "data": parse(task["data"])}}
    except SettingError as error:
        raise SettingError(f"task.{error.path}", error.problem) from None


def _read_toml(path: Path, where: str = "") -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(where, f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(where, f"{path} is not TOML: {error}") from None


class _OverrideText(str):
    """Text of an override: where it names a file, that is relative to the current folder."""


def _mark_override_text(raw: Any) -> Any:
    if isinstance(raw, list):
        return [_mark_override_text(item) for item in raw]
    if isinstance(raw, dict):
        return {key: _mark_override_text(value) for key, value in raw.items()}
    return _OverrideText(raw) if isinstance(raw, str) else raw


def _resolve_path(name: str, folder: Path) -> Path:
    return Path(name) if isinstance(name, _OverrideText) else folder / name


def _resolve_files(raw: Any, folder: Path, where: str = "") -> Any:
    """The same tables, with what they name in files made absolute or read, so that the resolved job stands alone."""
    if isinstance(raw, list):
        return [_resolve_files(item, folder, f"{where}[{index}]") for index, item in enumerate(raw)]
    if isinstance(raw, _OverrideText):
        return str(raw)
    if not isinstance(raw, dict):
        return raw
    found = {key: _resolve_files(value, folder, f"{where}.{key}" if where else key) for key, value in raw.items()}
    if found.get("kind") == "csv" and isinstance(raw.get("file"), str):
        found["file"] = str(_resolve_path(raw["file"], folder).resolve())
    if found.get("kind") == "filter-dropout" and isinstance(raw.get("table"), str):
        found["table"] = (
            _load_pareto_tables(_resolve_path(raw["table"], folder), f"{where}.table") if raw["table"] else None
        )
    if _DEVICE_GROUP.fullmatch(where) and isinstance(raw.get("profile"), str):
        found["profile"] = _load_profile_tables(_resolve_path(raw["profile"], folder), f"{where}.profile")
    if not where and isinstance(raw.get("start"), str):
        found["start"] = os.path.abspath(
            _resolve_path(raw["start"], folder)
        )  # links unfollowed: the same on every device
    return found


def _load_profile_tables(path: Path, where: str) -> dict[str, Any]:
    """The content of a file of `potluck profile` that a fleet's devices need, as plain tables."""
    from potluck.model.model_profile import load_profile

    try:
        profile = load_profile(path)
    except DataError as error:
        raise SettingError(where, str(error)) from None
    columns = ProfiledLayer.__struct_fields__
    layers = [{name: getattr(layer, name) for name in columns} for layer in profile.layers]
    return {"model": profile.model, "batch": profile.batch, "layers": layers}


def _load_pareto_tables(path: Path, where: str) -> dict[str, Any]:
    """What `potluck explore` wrote, as plain tables."""
    try:
        return dict(encode_settings(ParetoTable.load(path)))
    except RunError as error:
        raise SettingError(where, str(error)) from None

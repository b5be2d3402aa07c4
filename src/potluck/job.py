"""The frozen settings of one run, read from TOML and written back to TOML.

Later sources override earlier ones: defaults, recipe, job.toml, `--set`.

A resolved job depends on nothing else: paths of traces are absolute, explored tables and device profiles replace their
file names, and the recipe is only a label. It can be read on a device that has neither those files nor the recipe.
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
from potluck.model.local_training import LocalSgd
from potluck.model.transformers_model import is_config_only, read_config
from potluck.planning.pareto_table import ParetoTable
from potluck.settings import (
    Settings,
    apply_override,
    check_given_keys,
    decode_settings,
    doc,
    encode_settings,
    find_unused_keys,
    merge_tables,
    part_kinds,
)
from potluck.task import TaskSettings
from potluck.units import Bytes, Seconds

__all__ = [
    "Job",
    "StopRules",
    "built_in_fleets",
    "check_constructed_job",
    "dump_job",
    "load_job",
    "load_task_settings",
    "make",
]

DEFAULT_RECIPE = "fedavg"

Count = Annotated[int, msgspec.Meta(ge=0)]
_DEVICE_GROUP = re.compile(r"fleet\.devices\[\d+\]")


class StopRules(Settings, frozen=True, kw_only=True):
    """`[stop]`: the run ends at the first of these limits; `rounds`, `time` or `bytes` is required."""

    rounds: Annotated[Annotated[int, msgspec.Meta(ge=1)] | None, doc("Rounds to train; in a pipeline, batches.")] = None
    time: Annotated[
        Seconds | None, doc("Seconds to train: simulated time in a simulated run, wall-clock time in a live one.")
    ] = None
    bytes: Annotated[Bytes | None, doc("Bytes to transfer over the network in total.")] = None
    accuracy: Annotated[
        Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] | None,
        doc("Target accuracy on the test samples, as a fraction of 1; the same as `metrics = {accuracy = …}`."),
    ] = None
    metrics: Annotated[
        dict[str, float],
        doc("Target of each metric of the task, such as `{perplexity = 5.0}`; one that is reached ends the run."),
    ] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rounds is None and self.time is None and self.bytes is None:
            raise ValueError(
                "give at least one budget: `rounds`, `time` or `bytes` (a target `accuracy` may never be reached)"
            )
        if self.accuracy is not None and "accuracy" in self.metrics:
            raise ValueError("`accuracy` and `metrics.accuracy` are the same target; leave one of them out")

    @property
    def targets(self) -> dict[str, float]:
        """The target of each metric."""
        return self.metrics if self.accuracy is None else {"accuracy": self.accuracy, **self.metrics}


class Job(Settings, frozen=True, kw_only=True):
    """`job.toml`: what is trained, how, on which fleet and until when, with its recipe applied.

    Build a job that names a recipe with `make` or `load_job`: the constructor takes settings as they are, has the
    defaults of `fedavg`, and refuses any other recipe.
    """

    task: Annotated[
        TaskSettings | str, doc("The `[task]` table, or `package.module:function` that returns a `potluck.Task`.")
    ]
    fleet: Annotated[Fleet, doc("The `[fleet]` table, a `.toml` file beside the job, or the name of a built-in fleet.")]
    stop: Annotated[StopRules, doc("When the run ends.")]
    recipe: Annotated[
        str, doc("Recipe that supplies every setting that the job leaves out; `potluck recipes` lists them.")
    ] = DEFAULT_RECIPE
    rounds: Annotated[Rounds, doc("Settings of the rounds loop.")] = Rounds(local=LocalSgd(lr=0.05))  # those of fedavg
    pipeline: Annotated[
        Pipeline | None, doc("Settings of the pipeline loop; with this table the layers are spread over the devices.")
    ] = None
    split: Annotated[Split, doc("Which device holds which training samples.")] = IidSplit()
    stream: Annotated[
        StreamSettings | None,
        doc("Settings of streamed data; without this table a device holds all its samples from the start."),
    ] = None
    seed: Annotated[Count, doc("Seed from which all randomness of the run is derived.")] = 0
    start: Annotated[
        str | None,
        doc("Initial weights: the folder of an earlier run or a `.safetensors` file; by default newly initialised."),
    ] = None
    name: Annotated[str, doc("Title of the run in tables and reports; by default the model and the data set.")] = ""
    evaluate: Annotated[Count, doc("Rounds between two evaluations of the model; 0 evaluates at the end only.")] = 1
    checkpoint: Annotated[Count, doc("Rounds between two checkpoints; 0 saves at the end only.")] = 10
    best: Annotated[
        str,
        doc(
            "Metric by which the best model is kept as `best.safetensors`, or `none`; by default the first of the"
            " task's `metrics`, and none if the task lists no metrics."
        ),
    ] = ""
    timing_only: Annotated[bool, doc("Simulate messages, bytes and seconds without training.")] = False
    samples: Annotated[
        int, msgspec.Meta(ge=1), doc("Samples assumed on each device by `timing_only` and by `potluck plan`.")
    ] = 500

    def __post_init__(self) -> None:
        if self.recipe != DEFAULT_RECIPE and not isinstance(self.recipe, _AppliedRecipe):
            recipes.find_recipe(self.recipe)
            raise SettingError(
                "recipe", f"Job(...) applies no recipe; use potluck.make({{'recipe': {self.recipe!r}, ...}})"
            )
        if self.rounds.least > len(self.fleet.members):
            raise SettingError(
                "rounds.least", f"{self.rounds.least} devices are more than the fleet has ({len(self.fleet.members)})"
            )
        for key in ("retry", "patience"):
            if not getattr(self.rounds, key) > 0:
                raise SettingError(f"rounds.{key}", "must be above 0")

    def unused_keys(self) -> Mapping[str, str]:
        if self.pipeline is None:
            return {
                **({} if self.timing_only else {"samples": "without timing_only = true"}),
                **self.rounds.unused_stream_keys(self.stream is not None),
            }
        return {
            "rounds": "in a pipeline, which has no rounds",
            "split": "in a pipeline, whose first stage has all samples",
            "stream": "in a pipeline, whose first stage has all samples from the start",
            "samples": "in a pipeline, whose first stage has all samples",
            "task.costs": "in a pipeline, which is charged for the model that it trains",
        }

    @property
    def title(self) -> str:
        return self.name or (self.task if isinstance(self.task, str) else self.task.name)


def make(
    tables: Mapping[str, Any], overrides: Sequence[str] = (), folder: Path | None = None, *, resolved: bool = False
) -> Job:
    """Build a job from plain tables: its recipe's settings below, the overrides on top.

    Files that the tables name are relative to `folder`, those that an override names to the current folder. Keys that
    have no effect are refused. `resolved` is for tables that `dump_job` wrote: they hold all that their recipe says, so
    it is not looked up, and only the overrides have to have an effect.
    """
    if not isinstance(tables, Mapping):
        raise SettingError("", f"expected the tables of a job, got {type(tables).__name__}")
    raw: dict[str, Any] = _without_retired_keys(tables) if resolved else dict(tables)
    if isinstance(raw.get("fleet"), str):
        raw["fleet"] = _load_fleet_tables(raw["fleet"], folder)
    recipe = raw.get("recipe", DEFAULT_RECIPE)
    changes: dict[str, Any] = {}
    for assignment in overrides:
        changes = merge_tables(changes, change := _mark_override_text(apply_override({}, assignment)))
        raw = merge_tables(raw, change)
    if isinstance(raw.get("fleet"), str):
        raw["fleet"] = _load_fleet_tables(raw["fleet"], folder)
    name = raw.pop("recipe", DEFAULT_RECIPE)
    if not isinstance(name, str):
        raise SettingError("recipe", f"expected a name, got {name!r}")
    if resolved and name != recipe:
        raise SettingError("recipe", f"a run keeps its recipe ({recipe}); set what should change instead")
    raw = _expand_data_source(raw)
    given = changes if resolved else raw
    if not resolved:
        raw = merge_tables(recipes.find_recipe(name).settings, raw)
    job = decode_settings(_resolve_files(raw, folder or Path()), Job)
    check_given_keys(job, given)
    return msgspec.structs.replace(job, recipe=_AppliedRecipe(name))


def check_constructed_job(job: Job) -> None:
    """Refuse settings without effect in a job that was built by the constructor; `make` checks its own."""
    if not isinstance(job.recipe, _AppliedRecipe):
        check_given_keys(job, job)


def load_job(path: Path, overrides: Sequence[str] = (), *, resolved: bool = False) -> Job:
    """Read a job from a file; `resolved` as for `make`."""
    return make(_read_toml(path), overrides, path.parent, resolved=resolved)


def load_task_settings(path: Path) -> TaskSettings | str:
    """Read the task of a job file; the rest of the file is not checked."""
    raw = _expand_data_source(_read_toml(path))
    if "task" not in raw:
        raise SettingError("task", f"{path} has no task")
    task = _resolve_files(raw["task"], path.parent, "task")
    return task if isinstance(task, str) else decode_settings(task, TaskSettings, "task")


def dump_job(job: Job) -> str:
    """Write every setting that has an effect as TOML; reading it gives a job that does the same."""
    return tomli_w.dumps(encode_settings(job, leave_out=find_unused_keys(job)))


def built_in_fleets() -> dict[str, str]:
    """The fleets that come with Potluck: name to description, which is the first line of the file."""
    files = sorted(resources.files("potluck.fleet").joinpath("fleets").iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text().splitlines()[0].lstrip("# ") for file in files}


def _load_fleet_tables(name: str, folder: Path | None) -> dict[str, Any]:
    if name.endswith(".toml"):
        path = _resolve_path(name, folder or Path())
        return dict(_resolve_files(_read_toml(path, "fleet"), path.parent, "fleet"))
    if name not in built_in_fleets():
        raise SettingError("fleet", f"{name!r} is neither a .toml file nor one of {', '.join(built_in_fleets())}")
    return tomllib.loads(resources.files("potluck.fleet").joinpath("fleets", f"{name}.toml").read_text())


def _expand_data_source(raw: dict[str, Any]) -> dict[str, Any]:
    """Expand a data source that is written with its options in one string (`synthetic:classes=4`) into a table."""
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


def _without_retired_keys(tables: Mapping[str, Any]) -> dict[str, Any]:
    """A saved job without the keys of earlier versions that never had an effect."""
    fleet = tables.get("fleet")
    coordinator = fleet.get("coordinator") if isinstance(fleet, Mapping) else None
    if fleet is None or not isinstance(coordinator, Mapping) or "flops" not in coordinator:
        return dict(tables)
    kept = {key: value for key, value in coordinator.items() if key != "flops"}
    return {**tables, "fleet": {**fleet, "coordinator": kept}}


class _AppliedRecipe(str):
    """The name of a recipe whose settings the job already contains: the constructor takes no other."""


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
    """Make paths absolute and read the tables that are named by a file, so that the job depends on no other file."""
    if isinstance(raw, list):
        return [_resolve_files(item, folder, f"{where}[{index}]") for index, item in enumerate(raw)]
    if isinstance(raw, _OverrideText):
        return str(raw)
    if not isinstance(raw, dict):
        return raw
    resolved = {key: _resolve_files(value, folder, f"{where}.{key}" if where else key) for key, value in raw.items()}
    if resolved.get("kind") == "csv" and isinstance(raw.get("file"), str):
        resolved["file"] = str(_resolve_path(raw["file"], folder).resolve())
    if resolved.get("kind") == "filter-dropout" and isinstance(raw.get("table"), str):
        resolved["table"] = (
            _load_pareto_tables(_resolve_path(raw["table"], folder), f"{where}.table") if raw["table"] else None
        )
    if where == "task.model" and resolved.get("kind") == "transformers" and isinstance(raw.get("config"), str):
        resolved["config"] = _resolve_model_config(raw["config"], folder)
    if _DEVICE_GROUP.fullmatch(where) and isinstance(raw.get("profile"), str):
        resolved["profile"] = _load_profile_tables(_resolve_path(raw["profile"], folder), f"{where}.profile")
    if not where and isinstance(raw.get("start"), str):
        # Symbolic links are not followed: the path is the same on every device.
        resolved["start"] = os.path.abspath(_resolve_path(raw["start"], folder))
    return resolved


def _resolve_model_config(name: str, folder: Path) -> str | dict[str, Any]:
    """The table of a config without weights, the absolute path of a folder with weights, or a name on the Hub."""
    path = _resolve_path(name, folder).expanduser()
    if not path.exists():
        return str(name)
    return read_config(path) if is_config_only(path) else os.path.abspath(path)


def _load_profile_tables(path: Path, where: str) -> dict[str, Any]:
    """Read what a fleet's devices need of a file that `potluck profile` wrote, as plain tables."""
    from potluck.model.model_profile import load_profile

    try:
        profile = load_profile(path)
    except DataError as error:
        raise SettingError(where, str(error)) from None
    columns = ProfiledLayer.__struct_fields__
    layers = [{name: getattr(layer, name) for name in columns} for layer in profile.layers]
    return {"model": profile.model, "batch": profile.batch, "layers": layers}


def _load_pareto_tables(path: Path, where: str) -> dict[str, Any]:
    """Read what `potluck explore` wrote, as plain tables."""
    try:
        return dict(encode_settings(ParetoTable.load(path)))
    except RunError as error:
        raise SettingError(where, str(error)) from None

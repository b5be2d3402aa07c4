"""`potluck profile`: what each layer of a model costs, predicted for a preset or measured on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from potluck.cli.command_options import AsJson
from potluck.cli.console import open_console, plain_table
from potluck.cli.number_format import format_bytes, format_seconds
from potluck.errors import ModelError, UserError

if TYPE_CHECKING:
    from torch import nn

    from potluck.model.input_spec import InputSpec
    from potluck.model.model_profile import ModelProfile

__all__ = ["profile_command"]

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A model by name, package.module:function, or a job.toml for its model."),
]
Shape = Annotated[
    str | None, typer.Option("--shape", help="The shape of one sample, such as 3x32x32 (default: the model's).")
]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Samples per step.")]
Device = Annotated[str, typer.Option("--device", help="Predict for this preset, such as pi4; see `potluck fleets`.")]
Measure = Annotated[bool, typer.Option("--measure", help="Measure on this machine instead.")]
Out = Annotated[Path | None, typer.Option("--out", help="Write the profile to this JSON file.")]


def profile_command(
    model: Model,
    shape: Shape = None,
    batch: Batch = 32,
    device: Device = "pi4",
    measure: Measure = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Show what each layer of a model costs, in seconds and bytes."""
    profile = _measure_profile(model, shape, batch) if measure else _derive_profile(model, shape, batch, device)
    if out is not None:
        profile.save(out)
    if as_json:
        import msgspec

        typer.echo(json.dumps(msgspec.to_builtins(profile)))
        return
    _print_profile(profile)
    if out is not None:
        typer.echo(f"written: {out}")


def _derive_profile(model: str, shape: str | None, batch: int, device: str) -> ModelProfile:
    from potluck.fleet import PRESETS
    from potluck.model.layer_chain import trace_layers
    from potluck.model.model_profile import derive_profile
    from potluck.model.shape_only import ShapeOnlyMode

    if device not in PRESETS:
        raise UserError(f"--device {device!r} is not known; choose from {', '.join(PRESETS)}")
    wanted = _find_model(model, shape)
    with ShapeOnlyMode():
        module = wanted.build_module()
    chain = trace_layers(module, wanted.spec)
    return derive_profile(chain, batch, PRESETS[device].flops, model=wanted.name, device=device)


def _measure_profile(model: str, shape: str | None, batch: int) -> ModelProfile:
    from potluck.model.layer_chain import trace_layers
    from potluck.model.model_profile import measure_profile

    wanted = _find_model(model, shape)
    return measure_profile(trace_layers(wanted.build_module(), wanted.spec), batch, model=wanted.name)


class _NamedModel(NamedTuple):
    """A model to profile, not built yet, and what one sample looks like."""

    factory: Callable[[], nn.Module]
    spec: InputSpec
    name: str

    def build_module(self) -> nn.Module:
        try:
            return self.factory()
        except UserError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise ModelError(f"cannot build {self.name!r}: {type(error).__name__}: {error}") from error


def _find_model(model: str, shape: str | None) -> _NamedModel:
    from potluck.cli.run_command import add_cwd_to_path
    from potluck.data import parse
    from potluck.model import zoo
    from potluck.model.input_spec import InputSpec
    from potluck.task import TaskSettings

    if model.endswith(".toml"):
        return _find_job_model(Path(model), shape)
    sides = _parse_shape(shape) if shape is not None else None
    entry = None if ":" in model else zoo.model_entry(model)
    if entry is not None:
        sides = sides or entry.shape
    if sides is None:
        raise UserError(f"--shape is needed for {model!r}, as in --shape 3x32x32")
    add_cwd_to_path()
    factory = TaskSettings(model=model, data=parse("synthetic")).model_factory(sides, 0)
    spec = InputSpec.of_shape(sides) if entry is None else InputSpec.of_shape(sides, entry.dtype)
    return _NamedModel(factory, spec, model)


def _find_job_model(path: Path, shape: str | None) -> _NamedModel:
    """A job's model at the shape and classes of its data; its fleet is not read, since it may name the profile."""
    from potluck.cli.run_command import add_cwd_to_path
    from potluck.job import load_task_settings
    from potluck.run.initial_weights import input_spec
    from potluck.task import build_task

    if shape is not None:
        raise UserError("--shape: a job's model has the shape of the job's data; leave the option out")
    add_cwd_to_path()
    settings = load_task_settings(path)
    if isinstance(settings, str):
        task = build_task(settings, None)
        return _NamedModel(lambda: task.build_module(0), input_spec(task.data), task.name)
    return _NamedModel(*settings.describe_model(), settings.model_name)


def _parse_shape(written: str) -> tuple[int, ...]:
    sides = written.split("x")
    if not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise UserError(f"--shape {written!r} does not have the form 3x32x32")
    return tuple(map(int, sides))


def _print_profile(profile: ModelProfile) -> None:
    drawn = plain_table("layer", "weights", "output/sample", "MACs/sample", "forward", "backward")
    for layer in profile.layers:
        drawn.add_row(
            layer.name, format_bytes(layer.param_bytes), format_bytes(layer.output_bytes), f"{layer.macs:,}",
            format_seconds(layer.forward_s), format_seconds(layer.backward_s),
        )  # fmt: skip
    total = profile.totals
    drawn.add_row(
        "all",
        format_bytes(total.param_bytes),
        "",
        f"{total.macs:,}",
        format_seconds(total.forward_s),
        format_seconds(total.backward_s),
        style="bold",
    )
    console = open_console()
    console.print(f"{profile.model}, batch of {profile.batch}, {profile.source} for {profile.device}", markup=False)
    console.print(drawn)
    if profile.note:
        console.print(profile.note, markup=False)

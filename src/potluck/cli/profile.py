"""`potluck profile`: what each layer of a model costs, on a device by its preset or measured on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.console import open_console, plain_table
from potluck.cli.figures import amount, seconds
from potluck.cli.options import AsJson
from potluck.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from potluck.model.profile import Profile

__all__ = ["profile"]

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model by name, or package.module:function.")]
Shape = Annotated[str | None, typer.Option("--shape", help="One sample, such as 3x32x32 (default: the model's own).")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Samples per step.")]
Device = Annotated[str, typer.Option("--device", help="A preset such as pi4; see `potluck fleets`.")]
Measure = Annotated[bool, typer.Option("--measure", help="Measure on this machine instead.")]
Out = Annotated[Path | None, typer.Option("--out", help="Write the profile to this JSON file.")]


def profile(
    model: Model,
    shape: Shape = None,
    batch: Batch = 32,
    device: Device = "pi4",
    measure: Measure = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """What each layer of a model costs, in seconds and bytes."""
    found = _measured(model, shape, batch) if measure else _derived(model, shape, batch, device)
    if out is not None:
        found.save(out)
    if as_json:
        import msgspec

        typer.echo(json.dumps(msgspec.to_builtins(found)))
        return
    _say(found)
    if out is not None:
        typer.echo(f"written to {out}")


def _derived(model: str, shape: str | None, batch: int, device: str) -> Profile:
    import torch

    from potluck.fleet import PRESETS
    from potluck.model.chain import trace
    from potluck.model.profile import derive

    if device not in PRESETS:
        raise UserError(f"--device {device!r} is not known; choose from {', '.join(PRESETS)}")
    with torch.device("meta"):
        module, sides = _build(model, shape)
    return derive(trace(module, sides), batch, PRESETS[device].flops, model=model, device=device)


def _measured(model: str, shape: str | None, batch: int) -> Profile:
    from potluck.model.chain import trace
    from potluck.model.profile import measure

    module, sides = _build(model, shape)
    return measure(trace(module, sides), batch, model=model)


def _build(model: str, shape: str | None) -> tuple[nn.Module, tuple[int, ...]]:
    from potluck.cli.run import find_own_code
    from potluck.data import parse
    from potluck.model import zoo
    from potluck.task import TaskSettings

    sides = _sides(shape) if shape is not None else None
    if ":" not in model:
        sides = sides or zoo.entry(model).shape
    if sides is None:
        raise UserError(f"--shape is needed for {model!r}, as in --shape 3x32x32")
    find_own_code()
    return TaskSettings(model=model, data=parse("synthetic")).factory(sides, 0)(), sides


def _sides(written: str) -> tuple[int, ...]:
    sides = written.split("x")
    if not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise UserError(f"--shape {written!r} does not have the form 3x32x32")
    return tuple(map(int, sides))


def _say(found: Profile) -> None:
    drawn = plain_table("layer", "weights", "output/sample", "MACs/sample", "forward", "backward")
    for layer in found.layers:
        drawn.add_row(
            layer.name, amount(layer.param_bytes), amount(layer.output_bytes), f"{layer.macs:,}",
            seconds(layer.forward_s), seconds(layer.backward_s),
        )  # fmt: skip
    total = found.totals
    drawn.add_row(
        "all", amount(total.param_bytes), "", f"{total.macs:,}", seconds(total.forward_s), seconds(total.backward_s),
        style="bold",
    )  # fmt: skip
    console = open_console()
    console.print(f"{found.model}, batch of {found.batch}, {found.source} for {found.device}", markup=False)
    console.print(drawn)
    if found.note:
        console.print(found.note, markup=False)

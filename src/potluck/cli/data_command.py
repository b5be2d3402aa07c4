"""`potluck data`: which datasets there are, where they are stored, and whether they are complete."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.command_options import AsJson, Data
from potluck.cli.number_format import format_bytes

if TYPE_CHECKING:
    from potluck.data import Check, Info

__all__ = ["app"]

app = typer.Typer(help="List, describe and verify datasets.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A dataset such as cifar10, synthetic:classes=4, folder:/path or text:/path."),
]


@app.command("list")
def list_datasets(data: Data = None, as_json: AsJson = False) -> None:
    """List all datasets and where each is stored."""
    import msgspec

    from potluck.data import info, names

    datasets = [info(name, data) for name in names()]
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(datasets), indent=2))
        return
    typer.echo(_format_table([_ROW_HEADER, *(_info_row(dataset) for dataset in datasets)]))


@app.command("info")
def show_dataset(name: Name, data: Data = None, as_json: AsJson = False) -> None:
    """Describe one dataset without reading it."""
    import msgspec

    from potluck.data import info

    dataset = info(name, data)
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(dataset), indent=2))
        return
    typer.echo(_format_pairs(_info_pairs(dataset)))


@app.command("check")
def check_dataset(name: Name, data: Data = None, as_json: AsJson = False) -> None:
    """Verify a dataset against the figures of its publisher."""
    import msgspec

    from potluck.data import check

    result = check(name, data)
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(result), indent=2))
        return
    typer.echo(
        f"{result.name} is complete: {result.train:,} training and {result.test:,} test samples of"
        f" {_format_shape(result.shape)}{_format_vocabulary(result.vocabulary)}{_format_classes(result)}"
        f"{_format_owners(result.owners)}, {format_bytes(result.bytes)} in memory"
    )


_ROW_HEADER = ("name", "shape", "classes", "train", "test", "location")


def _info_row(dataset: Info) -> tuple[str, ...]:
    known = dataset.train > 0
    return (
        dataset.name,
        _format_shape(dataset.shape),
        str(len(dataset.classes)) if dataset.classes else "-",
        f"{dataset.train:,}" if known else "-",
        f"{dataset.test:,}" if known else "-",
        dataset.location or f"missing: potluck data info {dataset.name}",
    )


def _info_pairs(dataset: Info) -> Iterable[tuple[str, str]]:
    yield "name", dataset.name
    yield "about", dataset.about
    tokens = _format_vocabulary(dataset.vocabulary)
    yield "sample", f"{_format_shape(dataset.shape)}{tokens}, {format_bytes(dataset.sample_bytes)}"
    yield "samples", f"{dataset.train:,} training, {dataset.test:,} test"
    yield "classes", f"{len(dataset.classes)}: {', '.join(dataset.classes)}" if dataset.classes else "none"
    yield from _limit_pairs(dataset)
    yield "location", dataset.location or "missing"
    yield "to get it", dataset.get
    yield "options", ", ".join(f"{key}={_format_value(value)}" for key, value in dataset.options.items()) or "none"


def _limit_pairs(dataset: Info) -> Iterable[tuple[str, str]]:
    """What no model can do better than, where that is known."""
    if dataset.entropy is not None:
        yield "entropy", f"{_format_nats(dataset.entropy)} per token, given all that was said before"
    if dataset.loss_floor is not None:
        yield "best loss", f"{_format_nats(dataset.loss_floor)}: no model has less on average"
    if dataset.accuracy_ceiling is not None:
        yield "best acc.", f"{dataset.accuracy_ceiling:.1%}: no model has more on average"


def _format_nats(nats: float) -> str:
    return f"{nats:.4f} nats (perplexity {math.exp(nats):.3f})"


def _format_table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _format_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{key + ':':<11}{value}" for key, value in pairs)


def _format_shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _format_value(value: object) -> str:
    return _format_shape(value) if isinstance(value, tuple) else str(value)


def _format_vocabulary(count: int) -> str:
    return f" tokens (vocabulary {count:,})" if count else ""


def _format_classes(result: Check) -> str:
    if not result.classes:
        return ""
    counts = f"{result.smallest_class:,} to {result.largest_class:,}"
    return f", {result.classes} classes of {counts} training samples"


def _format_owners(count: int) -> str:
    return f", {count:,} owners" if count else ""

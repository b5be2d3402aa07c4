"""`potluck data`: which data sets there are, where they lie, and whether they are whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from potluck.data import Info

__all__ = ["app"]

app = typer.Typer(help="Data sets: which there are, where they lie, whether they are whole.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A set such as cifar10, synthetic:classes=4 or folder:/path.")]
Folder = Annotated[Path | None, typer.Option("--data", help="Look here first, then in $POTLUCK_DATA and the cache.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_datasets(data: Folder = None, as_json: AsJson = False) -> None:
    """All data sets, and where each was found."""
    import msgspec

    from potluck.data import info, names

    found = [info(name, data) for name in names()]
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found), indent=2))
        return
    typer.echo(_format_table([_ROW_HEADER, *(_info_row(one) for one in found)]))


@app.command("info")
def show_dataset(name: Name, data: Folder = None, as_json: AsJson = False) -> None:
    """What is known of one data set, without reading it."""
    import msgspec

    from potluck.data import info

    one = info(name, data)
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(one), indent=2))
        return
    typer.echo(_format_pairs(_info_pairs(one)))


@app.command("check")
def check_dataset(name: Name, data: Folder = None, as_json: AsJson = False) -> None:
    """Read all of one data set and compare it with what its publisher says."""
    import msgspec

    from potluck.data import check

    result = check(name, data)
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(result), indent=2))
        return
    typer.echo(
        f"{result.name} is whole: {result.train:,} training and {result.test:,} test samples of"
        f" {_format_shape(result.shape)}, {result.classes} classes of {result.smallest_class:,} to"
        f" {result.largest_class:,} training samples{_format_owners(result.owners)},"
        f" {result.bytes / 1e6:,.1f} MB in memory"
    )


_ROW_HEADER = ("name", "shape", "classes", "train", "test", "place")


def _info_row(one: Info) -> tuple[str, ...]:
    known = one.train > 0
    return (
        one.name,
        _format_shape(one.shape),
        str(len(one.classes)) if known else "-",
        f"{one.train:,}" if known else "-",
        f"{one.test:,}" if known else "-",
        one.place or f"missing: potluck data info {one.name}",
    )


def _info_pairs(one: Info) -> Iterable[tuple[str, str]]:
    yield "name", one.name
    yield "about", one.about
    yield "sample", f"{_format_shape(one.shape)}, {one.sample_bytes:,} bytes"
    yield "samples", f"{one.train:,} training, {one.test:,} test"
    yield "classes", f"{len(one.classes)}: {', '.join(one.classes)}"
    yield "place", one.place or "missing"
    yield "to get it", one.get
    yield "options", ", ".join(f"{key}={_format_value(value)}" for key, value in one.options.items()) or "none"


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


def _format_owners(count: int) -> str:
    return f", {count:,} owners" if count else ""

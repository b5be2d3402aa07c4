"""`potluck new`: a commented job and fleet to start from, which run as they are."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from potluck.cli.command_options import AsJson
from potluck.errors import UserError

__all__ = ["new_command"]

FILES = ("job.toml", "fleet.toml")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write to (default: the current one).")]


def new_command(folder: Folder = Path(), as_json: AsJson = False) -> None:
    """Write a commented job.toml and fleet.toml to start from."""
    for name in FILES:
        if (folder / name).exists():
            raise UserError(f"{folder / name} already exists; choose another folder with `potluck new DIR`")
    written = [_write_starter(folder, name) for name in FILES]
    if as_json:
        typer.echo(json.dumps({"files": [str(path) for path in written]}))
        return
    typer.echo(f"wrote {' and '.join(map(str, written))}")
    typer.echo(f"try: potluck run {written[0]}")


def _write_starter(folder: Path, name: str) -> Path:
    text = resources.files("potluck.cli").joinpath("starter", name).read_text(encoding="utf-8")
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path

"""`potluck new`: a job and a fleet that run as they are. `potluck schema`: a JSON schema for editors."""

from __future__ import annotations

import json
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from potluck.cli.command_options import AsJson
from potluck.errors import UserError

__all__ = ["new_command", "schema_command", "schema_text"]


STARTERS = ("job.toml", "fleet.toml")
SCHEMA = "job.schema.json"  # named in the first line of the starter job.toml

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write to (default: the current one).")]


def new_command(folder: Folder = Path(), as_json: AsJson = False) -> None:
    """Write a job.toml and a fleet.toml to start from."""
    for name in (*STARTERS, SCHEMA):
        if (folder / name).exists():
            raise UserError(f"{folder / name} already exists; choose another folder with `potluck new DIR`")
    starters = resources.files("potluck.cli").joinpath("starter")
    texts = {name: starters.joinpath(name).read_text(encoding="utf-8") for name in STARTERS}
    written = [_write_file(folder / name, text) for name, text in {**texts, SCHEMA: schema_text() + "\n"}.items()]
    if as_json:
        typer.echo(json.dumps({"files": [str(path) for path in written]}))
        return
    typer.echo(f"wrote {written[0]}, {written[1]} and {written[2]}")
    typer.echo(f"try: potluck run {written[0]}")


def _write_file(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path


class SchemaFile(StrEnum):
    """The files that have a schema."""

    JOB = "job"
    FLEET = "fleet"


Which = Annotated[SchemaFile, typer.Argument(metavar="[job|fleet]", help="Which file's schema.")]


def schema_command(which: Which = SchemaFile.JOB) -> None:
    """Print the JSON schema of job.toml or fleet.toml."""
    typer.echo(schema_text(which))


def schema_text(which: SchemaFile = SchemaFile.JOB) -> str:
    """The schema as JSON, made from the settings classes."""
    from potluck.fleet import Fleet
    from potluck.job import Job
    from potluck.job_schema import build_schema

    return json.dumps(build_schema(Fleet if which is SchemaFile.FLEET else Job), indent=1, ensure_ascii=False)

"""`potluck schema`: the JSON schema of job.toml or fleet.toml, for editors that complete and check keys."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

__all__ = ["schema_command", "schema_text"]


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

"""All commands in one place, and what an error of the user looks like: one line, exit code 2."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import potluck
from potluck.cli import (
    catalogue_command,
    certs_command,
    data_command,
    demo_command,
    doctor_command,
    explore_command,
    export_command,
    join_command,
    new_command,
    plan_command,
    profile_command,
    report_command,
    run_command,
    schema_command,
    serve_command,
    status_command,
    ui_command,
)
from potluck.errors import UserError

__all__ = ["app", "main"]


class CommandGroup(TyperGroup):
    """The commands; what a user did wrong ends them with one line instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=CommandGroup,
    help="Train one PyTorch model on whatever devices turn up.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help is there twice as fast
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"potluck {potluck.__version__}")
        raise typer.Exit


@app.callback()
def _root_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train one PyTorch model on whatever devices turn up."""


app.command("demo")(demo_command.demo_command)
app.command("new")(new_command.new_command)
app.command("doctor")(doctor_command.doctor_command)
app.command("run")(run_command.run_command)
app.command("resume")(run_command.resume_command)
app.command("serve")(serve_command.serve_command)
app.command("join")(join_command.join_command)
app.command("lab")(serve_command.lab_command)
app.command("status")(status_command.status_command)
app.command("stop")(status_command.stop_command)
app.command("explore")(explore_command.explore_command)
app.command("report")(report_command.report_command)
app.command("ui")(ui_command.ui_command)
app.command("export")(export_command.export_command)
app.command("plan")(plan_command.plan_command)
app.command("profile")(profile_command.profile_command)
app.command("schema")(schema_command.schema_command)
app.command("recipes")(catalogue_command.recipes_command)
app.command("fleets")(catalogue_command.fleets_command)
app.add_typer(data_command.app, name="data")
app.add_typer(certs_command.app, name="certs")


def _mount_bench() -> None:
    """Benchmarks are for a checkout; a device may be without them."""
    if importlib.util.find_spec("potluck.cli.bench_command") is not None:
        bench = importlib.import_module("potluck.cli.bench_command")
        app.command("bench")(bench.bench_command)


_mount_bench()


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; leaves by SystemExit, whose code is the outcome."""
    app(args=None if argv is None else list(argv), prog_name="potluck")

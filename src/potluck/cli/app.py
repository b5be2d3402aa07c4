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
    certs,
    data,
    demo,
    doctor,
    explore,
    export,
    join,
    new,
    plan,
    profile,
    report,
    run,
    serve,
    show,
    status,
    ui,
)
from potluck.errors import UserError

__all__ = ["app", "main"]


class Verbs(TyperGroup):
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
    cls=Verbs,
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
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train one PyTorch model on whatever devices turn up."""


app.command("demo")(demo.demo)
app.command("new")(new.new)
app.command("doctor")(doctor.doctor)
app.command("run")(run.run)
app.command("resume")(run.resume)
app.command("serve")(serve.serve)
app.command("join")(join.join)
app.command("lab")(serve.lab)
app.command("status")(status.status)
app.command("stop")(status.stop)
app.command("explore")(explore.explore)
app.command("report")(report.report)
app.command("ui")(ui.ui)
app.command("export")(export.export)
app.command("plan")(plan.plan)
app.command("profile")(profile.profile)
app.command("recipes")(show.recipes)
app.command("fleets")(show.fleets)
app.add_typer(data.app, name="data")
app.add_typer(certs.app, name="certs")


def _mount_bench() -> None:
    """Benchmarks are for a checkout; a device may be without them."""
    if importlib.util.find_spec("potluck.cli.bench") is not None:
        bench = importlib.import_module("potluck.cli.bench")
        app.command("bench")(bench.bench_command)


_mount_bench()


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; leaves by SystemExit, whose code is the outcome."""
    app(args=None if argv is None else list(argv), prog_name="potluck")

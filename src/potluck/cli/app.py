"""All commands, and how bad input or a full disk ends them: one line on stderr and exit code 2 or 1."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

import potluck
from potluck.cli import (
    bench_command,
    catalogue_command,
    certs_command,
    data_command,
    demo_command,
    doctor_command,
    explore_command,
    join_command,
    new_command,
    plan_command,
    profile_command,
    report_command,
    run_command,
    serve_command,
    status_command,
)
from potluck.errors import PotluckWarning, StorageError, UserError

__all__ = ["app", "main"]


_UsageError: Any = typer.BadParameter.__base__  # what the parser raises; Typer does not export it


class CommandGroup(TyperGroup):
    """Ends a command with one line instead of a traceback where the user's input is wrong."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _one_line_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _one_line_errors(), warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return super().invoke(ctx)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from None
    except StorageError as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    except _UsageError as error:
        message = error.format_message()
        if message.startswith("Usage:"):  # the help of a group that was called without a command
            raise
        hint = f" (see `{error.ctx.command_path} --help`)" if error.ctx is not None else ""
        typer.echo(f"error: {message.rstrip('.')}{hint}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Potluck's own warnings are one line without the source location; others look as usual."""
    if issubclass(category, PotluckWarning):
        typer.echo(f"warning: {message}", err=True)
    else:
        typer.echo(warnings.formatwarning(message, category, filename, lineno, line), err=True, nl=False)


app = typer.Typer(
    cls=CommandGroup,
    help="Train one PyTorch model on whatever devices turn up.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help is twice as fast
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
app.command("promote")(status_command.promote_command)
app.command("stop")(status_command.stop_command)
app.command("explore")(explore_command.explore_command)
app.command("report")(report_command.report_command)
app.command("ui")(report_command.ui_command)
app.command("export")(report_command.export_command)
app.command("plan")(plan_command.plan_command)
app.command("profile")(profile_command.profile_command)
app.command("schema")(new_command.schema_command)
app.command("recipes")(catalogue_command.recipes_command)
app.command("fleets")(catalogue_command.fleets_command)
app.command("bench")(bench_command.bench_command)
app.add_typer(data_command.app, name="data")
app.add_typer(certs_command.app, name="certs")


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and raise SystemExit with its exit code."""
    app(args=None if argv is None else list(argv), prog_name="potluck")

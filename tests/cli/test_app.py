from __future__ import annotations

import resource
import subprocess
import sys

import pytest

import potluck as package
from potluck.errors import UserError
from tests.cli.calling import POTLUCK, Shell


def test_importing_the_commands_loads_neither_torch_nor_numpy() -> None:
    program = "import sys, potluck.cli; print([name for name in ('torch', 'numpy', 'rich') if name in sys.modules])"
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"


@pytest.mark.alone
@pytest.mark.wall_clock
def test_help_takes_less_than_a_third_of_a_second() -> None:
    """Measured in CPU time, which depends little on the load of the machine."""
    cpu_seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        completed = subprocess.run([*POTLUCK, "--help"], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert "demo" in completed.stdout
    assert min(cpu_seconds) < 0.3


def test_version(potluck: Shell) -> None:
    assert potluck("--version").out == f"potluck {package.__version__}\n"


def test_the_package_is_run_as_a_module() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "potluck", "--version"], capture_output=True, text=True, check=True
    )
    assert completed.stdout == f"potluck {package.__version__}\n"


COMMANDS = ("demo", "new", "doctor", "run", "resume", "plan", "profile", "recipes", "fleets")


def test_every_command_is_listed(potluck: Shell) -> None:
    help_text = potluck("--help").out
    assert all(f"\n  {name} " in help_text for name in (*COMMANDS, "data"))
    assert "..." not in help_text.partition("Commands:")[2], "a summary is too long for the list"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(potluck: Shell, command: str) -> None:
    result = potluck(command, "--help")
    assert result.code == 0
    assert "--json" in result.out


def test_a_wrong_option_is_not_a_traceback(potluck: Shell) -> None:
    result = potluck("run", "job.toml", "--threads", "many")
    assert result.code == 2
    assert "--threads" in result.err
    assert "Traceback" not in result.err


def test_a_user_error_is_printed_on_one_line(potluck: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise UserError("[red]two\n lines[/red]")

    monkeypatch.setattr("potluck.job.built_in_fleets", fails)
    assert potluck("fleets") == (2, "", "error: [red]two lines[/red]\n")


def test_a_bug_keeps_its_traceback(potluck: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("potluck.job.built_in_fleets", fails)
    with pytest.raises(KeyError, match="a bug"):
        potluck("fleets")

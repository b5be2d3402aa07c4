"""Every code block of the README and the docs runs as printed.

- `python`: executed, with one namespace per page; a block that begins with `# name.py` is saved as that file instead.
- `toml`: a job, a fleet or a fragment; simulated for two rounds. One that begins with `# name.toml` is also saved. The
  entry points of a `pyproject.toml` are registered, as `pip install .` would.
- `sh`: each line is run. Commands of Potluck are shortened by the options in `SHORTER`; what cannot run in a test is
  listed in `NOT_RUN` with the reason.
- no language: a drawing or an output; it must not contain commands.

Blocks of a page run in order, in a folder of their own that has the examples in it.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

import potluck
from potluck.cli.app import app
from potluck.job import dump_job, make
from potluck.settings import merge_tables
from tests.cli.calling import ROOT, Shell

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").rglob("*.md"))]
PAGES += [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "results.md"]

FILES = {"presence.csv": "seconds,level\n0,1\n60,0\n90,1\n"}  # that blocks name and do not show
BASE: dict[str, Any] = {
    "task": {"model": "mlp", "data": "drawn-digits", "options": {"hidden": [16, 16]}},
    "fleet": "kitchen-table",
    "stop": {"rounds": 2},
}

SHORTER = {
    "run": ("--quiet", "--set", "stop.rounds=2"),
    "lab": ("--quiet", "--set", "stop.rounds=1"),
    "resume": ("--quiet", "--set", "stop.rounds=3"),
    "explore": ("--quiet", "--with", "population=4", "--with", "generations=1", "--with", "batches=2",
                "--with", "warmup=2", "--with", "held_out=50", "--with", "repeats=1", "--with", "processes=0"),
}  # fmt: skip
NOT_RUN = {
    r"make (demo|check|test|test-long|reference|results|screenshots)": "sets up an environment of its own",
    r"(ruff|mypy|lint-imports|pytest)\b": "run by `make check` and `make test`",
    r"potluck bench\b": "measures for minutes; tests/bench runs each benchmark in a small size",
    r"potluck (serve|join)\b": "one process for each side; tests/docs/test_serve_and_join.py runs both",
    r"potluck promote\b": "needs a standby; tests/live/test_standby.py promotes one",
    r"potluck ui\b": "serves until Ctrl-C; tests/report opens the page",
    r"(mosquitto|python examples/streams/sensors\.py)\b": "needs a broker; tests/live_streams runs one",
    r"potluck lab .*kind=mqtt": "reads from that broker; tests/live_streams runs it",
    r"(sudo|chronyc|journalctl|systemd-inhibit|caffeinate)\b": "needs root, or another operating system",
    r"(scp|ssh|uname|curl)\b": "needs a second machine or the network",
    r"(python3 -m venv|.*/pip install|pip install|git clone)\b": "needs the network",
    r"/opt/potluck/bin/potluck\b": "needs an installation by root",
}


class Block(NamedTuple):
    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found[1], found[2], text[: found.start()].count("\n") + 1)
        for found in re.finditer(r"^```([a-z]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def commands(block: Block) -> Iterator[str]:
    """The lines of a shell block without comments; a line that ends with a backslash goes on in the next."""
    for line in block.text.replace("\\\n", " ").splitlines():
        command = re.sub(r"(^|\s)#.*$", "", line).strip()
        if command:
            yield command


class PageRunner:
    """Runs the blocks of one page in one folder."""

    def __init__(self, shell: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._shell = shell
        self._folder = folder
        self._monkeypatch = monkeypatch
        self._names: dict[str, Any] = {"__name__": "__docs__"}

    def run(self, block: Block) -> None:
        first = re.match(r"# ([\w.-]+\.(?:py|toml))\b", block.text)
        if first:
            (self._folder / first[1]).write_text(block.text, encoding="utf-8")
        if block.language == "python" and not first:
            exec(compile(block.text, f"<block at line {block.line}>", "exec"), self._names)
        elif first and first[1] == "pyproject.toml":
            self._register(tomllib.loads(block.text)["project"])
        elif block.language == "toml":
            self._run_job(tomllib.loads(block.text))
        elif block.language == "sh":
            for command in commands(block):
                self._run_command(command)

    def _run_job(self, tables: dict[str, Any]) -> None:
        if "devices" in tables:
            tables = {"fleet": tables}
        if not {"task", "fleet", "stop"} <= set(tables):
            base = {key: value for key, value in BASE.items() if key != "fleet" or "fleet" not in tables}
            tables = merge_tables(base, tables)
        job = make(tables, ["stop.rounds=2"], self._folder)
        assert potluck.simulate(job, threads=0).status == "done"

    def _register(self, project: dict[str, Any]) -> None:
        installed = self._folder / f"{project['name']}-{project['version']}.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
        groups = project["entry-points"].items()
        lines = [line for group, names in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in names.items()))]
        (installed / "entry_points.txt").write_text("\n".join(lines))

    def _run_command(self, command: str) -> None:
        if any(re.match(pattern, command) for pattern in NOT_RUN):
            if command.startswith("potluck"):
                check_options(command)
            return
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self._monkeypatch.setenv(name, os.path.expandvars(value))
            return
        words = shlex.split(command)
        while "=" in words[0]:
            self._monkeypatch.setenv(*words.pop(0).split("=", 1))
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True, timeout=120)
            return
        assert words[0] == "potluck", f"no test knows how to run {command!r}"
        found = [each for word in words[1:] for each in (sorted(glob.glob(word)) if "*" in word else [word])]
        outcome = self._shell(*found, *SHORTER.get(words[1], ()))
        assert outcome.code == 0, f"{command}: {outcome.err}"


def check_options(command: str) -> None:
    """The command exists and has these options."""
    words = shlex.split(command.split("`")[0])[1:]
    known: Any = typer.main.get_command(app)
    while words and hasattr(known, "commands"):
        if words[0].startswith("-"):
            break
        assert words[0] in known.commands, f"{command!r}: there is no command {words[0]!r}"
        known = known.commands[words.pop(0)]
    options = {option for each in known.params for option in (*each.opts, *each.secondary_opts)}
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= {*options, "--help"}, command


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[PageRunner]:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "base.toml").write_text(dump_job(make(BASE)))
    assert Shell(capsys)("profile", tmp_path / "base.toml", "--out", tmp_path / "pi4.json").code == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    before = set(sys.modules)
    yield PageRunner(Shell(capsys), tmp_path, monkeypatch)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(runner: PageRunner, page: Path) -> None:
    for block in blocks(page):
        runner.run(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_say_what_they_are(page: Path) -> None:
    for block in blocks(page):
        assert block.language in ("", "python", "toml", "sh"), f"{page.name}:{block.line}"
        if not block.language:
            assert not re.search(r"^(potluck|make|python|pip|sudo) ", block.text, re.MULTILINE), (
                f"{page.name}:{block.line}: mark commands as sh"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_text_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for command in re.findall(r"`(potluck [^`]*)`", text):
        check_options(re.sub(r"\\?\|.*|\.\.\.|….*|\[.*", "", command))

"""Runs `potluck` commands as processes, each in its own session, so that all its processes can be found and killed.

Most are forked from a server that has already imported everything, which saves seconds; where the parent process
matters, a command is started as a shell would start it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec

from potluck.cli import main
from potluck.job import dump_job, make
from tests import process_resources
from tests.cli.calling import POTLUCK
from tests.live.live_scenarios import LIMIT_S, small_job

__all__ = ["Command", "CommandRunner", "is_listening", "live_status", "wait_until", "write_job"]

_JOIN = re.compile(r"potluck join (\S+) --name (\S+) --token (\S+)")


def wait_until(description: str, condition: Callable[[], Any], seconds: float = LIMIT_S) -> Any:
    """Wait until the condition is true and return its value; fail after some time."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds:g} s for {description}")
        time.sleep(0.02)
    return value


def write_job(folder: Path, **settings: Any) -> Path:
    path = folder / "job.toml"
    path.write_text(dump_job(make(small_job(**settings))))
    return path


class Command:
    """A running command; its output goes to files, so that it never blocks on a full pipe."""

    def __init__(self, folder: Path, number: int, words: Sequence[str], forked: bool) -> None:
        self._words = " ".join(words)
        self._out, self._err = folder / f"{number}.out", folder / f"{number}.err"
        start = _fork_process if forked else _start_process
        self._process = start(folder, words, self._out, self._err)
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def end(self, seconds: float = LIMIT_S) -> int:
        """Wait for the command to end and return its exit code."""
        code = _exit_code(self._process, seconds)
        assert code is not None, f"potluck {self._words} is still running after {seconds:g} s:\n{self.err}"
        return code

    def invitations(self) -> dict[str, tuple[str, str]]:
        """The address and the token for each device, as `serve` prints them."""
        return {name: (address, token) for address, name, token in _JOIN.findall(self.err)}

    def group(self) -> set[int]:
        """All running processes of its session, including itself."""
        return {pid for pid in _pids() if _session(pid) == self.pid}

    def shared_memory_files(self) -> set[Path]:
        """Files under /dev/shm that its processes have open or mapped."""
        return {path for pid in self.group() for path in process_resources.shared_memory(pid)}


class CommandRunner:
    """Starts commands in a folder and kills all of their processes at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._commands: list[Command] = []

    def __call__(self, *words: str | Path, forked: bool = True) -> Command:
        command = Command(self.folder, len(self._commands), [str(word) for word in words], forked)
        self._commands.append(command)
        return command

    def end(self) -> None:
        for command in self._commands:
            for pid in command.group():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            command.end(10.0)


def is_listening(address: str) -> bool:
    """Whether a process accepts connections at tcp/HOST:PORT."""
    host, _, port = address.partition("/")[2].rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, int(port))) == 0


def live_status(run: Path) -> dict[str, Any]:
    """The contents of a live run's `live.json`; empty if there is none."""
    try:
        status: dict[str, Any] = msgspec.json.decode((run / "live.json").read_bytes())
    except FileNotFoundError:
        return {}
    return status


def _start_process(folder: Path, words: Sequence[str], out: Path, err: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with out.open("wb") as stdout, err.open("wb") as stderr:
        return subprocess.Popen(
            [*POTLUCK, *words], cwd=folder, stdout=stdout, stderr=stderr, env=environment, start_new_session=True
        )


def _fork_process(folder: Path, words: Sequence[str], out: Path, err: Path) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["potluck.run.lab", "potluck.cli", "torch._dynamo"])
    for path in (out, err):
        path.touch()
    process = context.Process(target=_run_command, args=(folder, words, out, err))
    process.start()
    wait_until("the session", lambda: process.pid is None or _session(process.pid) in (0, process.pid))
    return process


def _run_command(folder: Path, words: Sequence[str], out: Path, err: Path) -> None:
    """In the forked process: set up what a shell would set up, then run the command."""
    os.setsid()
    os.chdir(folder)
    for path, number in ((out, 1), (err, 2)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # it is ignored if the tests were started in the background
    main(list(words))


def _exit_code(process: BaseProcess | subprocess.Popen[bytes], seconds: float) -> int | None:
    if isinstance(process, BaseProcess):
        process.join(seconds)
        return process.exitcode
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    return None


def _pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())


def _session(pid: int) -> int:
    """The session of a running process; 0 if it has exited or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[3]) if fields[0] != "Z" else 0

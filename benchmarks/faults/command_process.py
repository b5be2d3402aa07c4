"""Runs a `potluck` command as a process of its own that can be killed, frozen and thawed.

Commands are forked from a server that has imported everything, so that a restart costs tenths of a second and not the
seconds of importing PyTorch. They die with the process that started them.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path

__all__ = ["CommandProcess", "end_with_parent", "wait_until"]

_PRELOADED = ["potluck.run.lab", "potluck.cli", "torch._dynamo"]
_END_S = 10.0
_PR_SET_PDEATHSIG = 1
_CLONE_NEWNET = 0x40000000


def wait_until(description: str, condition: Callable[[], bool], seconds: float) -> float:
    """Wait until the condition holds; return the seconds that it took. TimeoutError if it does not."""
    started_at = time.monotonic()
    while not condition():
        if time.monotonic() - started_at > seconds:
            raise TimeoutError(f"waited {seconds:g} s for {description}")
        time.sleep(0.02)
    return time.monotonic() - started_at


class CommandProcess:
    """A running command; both its outputs go to one file, which `log` reads."""

    def __init__(self, words: Sequence[str], log: Path, namespace: str = "") -> None:
        self._log = log
        log.touch()
        self._process = _fork_server().Process(
            target=_run_command, args=(list(words), str(log), namespace, list(sys.path)), name=words[0]
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def log(self) -> str:
        """What it and its predecessors with the same file have printed."""
        return self._log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process.is_alive()

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.exitcode

    def kill(self) -> None:
        """kill -9, and wait for its end."""
        self._process.kill()
        self._process.join(_END_S)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def wait(self, seconds: float) -> int:
        """Wait for its end and return its exit code; TimeoutError if it goes on."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise TimeoutError(f"the process {self.pid} did not end within {seconds:g} s: {self.log[-400:]}")
        return self._process.exitcode

    def _signal(self, sign: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, sign)


def _fork_server() -> ForkServerContext:
    """Its processes are killed, so that nobody removes their semaphores; that needs no warning."""
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def end_with_parent(sign: signal.Signals) -> None:
    """Have the kernel send this process a signal when the one that started it ends; Linux only."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, sign)


def _run_command(words: Sequence[str], log: str, namespace: str, path: list[str]) -> None:
    """In the forked process: what a shell would set up, then the command."""
    end_with_parent(signal.SIGKILL)
    os.setsid()
    sys.path[:] = path
    os.environ["OMP_NUM_THREADS"] = "1"
    with open(log, "ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    if namespace:
        _enter_network(namespace)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from potluck.cli import main

    main(list(words))


def _enter_network(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
    os.close(descriptor)

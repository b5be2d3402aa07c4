"""The two commands of the README that lead and join a live run work as printed, on a port of their own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.calling import ROOT
from tests.docs.test_blocks import blocks, commands
from tests.live.command_processes import CommandRunner, wait_until

SHORTER = ("--set", "stop.rounds=1", "--wait", "1")


@pytest.fixture
def start_command(tmp_path: Path) -> Iterator[CommandRunner]:
    started = CommandRunner(tmp_path)
    yield started
    started.end()


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.wall_clock
def test_serve_and_join(start_command: CommandRunner) -> None:
    printed = [command.split() for block in blocks(ROOT / "README.md") for command in commands(block)]
    (serve,) = [words[1:] for words in printed if words[:2] == ["potluck", "serve"]]
    (join,) = [words[1:] for words in printed if words[:2] == ["potluck", "join"]]
    assert join[1] == "tcp/127.0.0.1:7447"
    address = free_address()

    assert start_command("new", "mine").end() == 0
    serving = start_command(*serve, "--listen", address, *SHORTER)
    _, token = wait_until("the join command", lambda: serving.invitations().get("laptop"))
    joining = start_command("join", f"tcp/{address}", *join[2:], "--token", token, "--once")
    assert serving.end() == 0, serving.err
    assert joining.end() == 0, joining.err

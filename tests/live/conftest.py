from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.command_processes import CommandRunner
from tests.live.etcd_server import EtcdServer, require_etcd


@pytest.fixture
def start_command(tmp_path: Path) -> Iterator[CommandRunner]:
    commands = CommandRunner(tmp_path)
    yield commands
    commands.end()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    require_etcd()
    server = EtcdServer(tmp_path)
    server.start()
    try:
        yield server
    finally:
        server.stop()

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.command_processes import CommandRunner


@pytest.fixture
def start_command(tmp_path: Path) -> Iterator[CommandRunner]:
    commands = CommandRunner(tmp_path)
    yield commands
    commands.end()

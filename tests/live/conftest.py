from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.shells import Shells


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[Shells]:
    commands = Shells(tmp_path)
    yield commands
    commands.end()

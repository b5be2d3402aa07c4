"""A device of a run that lasts longer than its token."""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime
from pathlib import Path

from tests.live.running import LEASE, Scene, check_books, run_live
from tests.simulation.runs import instants

ROUNDS = 60


def test_a_device_is_taken_back_although_its_token_has_expired_meanwhile(tmp_path: Path) -> None:
    """It is silent for longer than the lease, is taken for lost, and comes back as the process that it was."""

    async def scenario(scene: Scene) -> None:
        scene.kill("d-3")
        arguments = scene.crew.arguments["d-3"]._replace(token=scene.token(hours=4 / 3600))
        scene.crew.arguments["d-3"] = arguments
        scene.crew.start_device("d-3")
        await _times(scene, "joined", 1)
        while scene.gate.refusal_reason("d-3", arguments.token, datetime.now(UTC), "another process") is None:
            await asyncio.sleep(0.1)
        scene.signal("d-3", signal.SIGSTOP)
        await _times(scene, "lost", 2)
        scene.signal("d-3", signal.SIGCONT)
        await _times(scene, "joined", 2)

    result = run_live(tmp_path / "run", scenario, act_out=True, stop={"rounds": ROUNDS})
    check_books(tmp_path / "run", result, ROUNDS)


async def _times(scene: Scene, name: str, count: int) -> None:
    async with asyncio.timeout(30 * LEASE):
        while sum(note.node == "d-3" for note in instants(scene.folder, name)) < count:
            assert name == "lost" or scene.crew.processes["d-3"].is_alive(), "it was refused"
            await asyncio.sleep(0.05)

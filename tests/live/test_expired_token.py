"""A device rejoins a run that outlasts its token."""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime
from pathlib import Path

from tests.live.live_scenarios import LEASE, RunControl, check_committed_rounds, run_live
from tests.simulation.runs import instants

ROUNDS = 60


def test_a_device_rejoins_after_its_token_has_expired(tmp_path: Path) -> None:
    """It is silent for longer than the lease, is considered lost, and rejoins from the same process."""

    async def scenario(control: RunControl) -> None:
        control.kill("d-3")
        arguments = control.devices.arguments["d-3"]._replace(token=control.token(hours=4 / 3600))
        control.devices.arguments["d-3"] = arguments
        control.devices.start_device("d-3")
        await _times(control, "joined", 1)
        while control.admission.refusal_reason("d-3", arguments.token, datetime.now(UTC), "another process") is None:
            await asyncio.sleep(0.1)
        control.signal("d-3", signal.SIGSTOP)
        await _times(control, "lost", 2)
        control.signal("d-3", signal.SIGCONT)
        await _times(control, "joined", 2)

    result = run_live(tmp_path / "run", scenario, emulate_fleet=True, stop={"rounds": ROUNDS})
    check_committed_rounds(tmp_path / "run", result, ROUNDS)


async def _times(control: RunControl, name: str, count: int) -> None:
    async with asyncio.timeout(30 * LEASE):
        while sum(instant.node == "d-3" for instant in instants(control.folder, name)) < count:
            assert name == "lost" or control.devices.processes["d-3"].is_alive(), "it was refused"
            await asyncio.sleep(0.05)

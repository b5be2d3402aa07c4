"""A device that has been in a run keeps asking after a refusal; one that has not exits with the reason."""

from __future__ import annotations

import asyncio
import logging

import pytest

from potluck.loops.messages import Joined
from potluck.loops.node import Node
from potluck.worlds.live.admission_server import AdmissionCheck
from potluck.worlds.live.coordinator_runtime import AdmissionHooks, CoordinatedRun, run_coordinator
from potluck.worlds.live.device_runtime import JoinRefusedError, run_device
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRefused, JoinRequest
from potluck.worlds.live.zenoh_session import Endpoint
from tests.time_limits import within
from tests.worlds.live.live_fleet import RecordingJournal, free_address
from tests.worlds.live.processes import run_info

REASON = "the token is of another run"


async def _idle(node: Node, accepted: JoinAccepted) -> None:
    await node.receive(node.now() + 60)


async def _lead(address: str, accepted: AdmissionCheck) -> None:
    """A run that ends as soon as a device has joined it."""

    async def until_joined(node: Node) -> None:
        while (envelope := await node.receive()) is None or not isinstance(envelope.message, Joined):
            pass

    await run_coordinator(
        Endpoint(listen=(address,)),
        CoordinatedRun(info=run_info(2.0), seed=0, journal=RecordingJournal()),
        until_joined,
        AdmissionHooks(check=accepted),
    )


async def _two_runs(requests: list[str]) -> str:
    """The second run refuses the device at first; returns the reason if the device gave up."""
    address = free_address()

    def refuse_at_first(request: JoinRequest) -> str | JoinRefused:
        requests.append(request.body)
        return request.name if len(requests) > 2 else JoinRefused(reason=REASON)

    device_task = asyncio.create_task(run_device(Endpoint(connect=(address,)), JoinRequest(name="a"), _idle))
    try:
        await _lead(address, lambda request: request.name)
        await _lead(address, refuse_at_first)
    finally:
        device_task.cancel()
        (end,) = await asyncio.gather(device_task, return_exceptions=True)
    return str(end)


def test_a_device_that_has_been_in_a_run_asks_until_the_next_run_admits_it(caplog: pytest.LogCaptureFixture) -> None:
    requests: list[str] = []
    with within(30), caplog.at_level(logging.INFO, "potluck"):
        asyncio.run(_two_runs(requests))
    assert len(requests) >= 3, "refused twice, then admitted; it may ask again while the run ends"
    assert len(set(requests)) == 1, "it is the same process each time"
    lines = [record.message for record in caplog.records if REASON in record.message and "waits" in record.message]
    assert len(lines) == 1, "once, not for every request"
    assert "it keeps asking" in lines[0]
    assert "start the device again with that run's token" in lines[0]


def test_a_device_refused_at_its_first_join_exits_with_the_reason() -> None:
    async def scenario() -> None:
        address = free_address()
        coordinator_task = asyncio.create_task(_lead(address, lambda request: JoinRefused(reason=REASON)))
        with pytest.raises(JoinRefusedError, match=REASON):
            await run_device(Endpoint(connect=(address,)), JoinRequest(name="a"), _idle)
        coordinator_task.cancel()
        await asyncio.gather(coordinator_task, return_exceptions=True)

    with within(30):
        asyncio.run(scenario())

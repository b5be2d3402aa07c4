"""Once it has been in a run, a device goes on asking where it is refused; before that it ends and says why."""

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
from tests.worlds.live.processes import card
from tests.worlds.live.town import Kept, free_address

REASON = "the token is of another run"


async def _idle(node: Node, welcome: JoinAccepted) -> None:
    await node.receive(node.now() + 60)


async def _lead(address: str, welcome: AdmissionCheck) -> None:
    """A run that is over as soon as somebody has joined it."""

    async def until_joined(node: Node) -> None:
        while (envelope := await node.receive()) is None or not isinstance(envelope.message, Joined):
            pass

    await run_coordinator(
        Endpoint(listen=(address,)),
        CoordinatedRun(info=card(2.0), seed=0, journal=Kept()),
        until_joined,
        AdmissionHooks(check=welcome),
    )


async def _two_runs(knocks: list[str]) -> str:
    """The second run does not want the device at first; the reason, if it gave up."""
    address = free_address()

    def reluctant(hello: JoinRequest) -> str | JoinRefused:
        knocks.append(hello.body)
        return hello.name if len(knocks) > 2 else JoinRefused(reason=REASON)

    visiting = asyncio.create_task(run_device(Endpoint(connect=(address,)), JoinRequest(name="a"), _idle))
    try:
        await _lead(address, lambda hello: hello.name)
        await _lead(address, reluctant)
    finally:
        visiting.cancel()
        (end,) = await asyncio.gather(visiting, return_exceptions=True)
    return str(end)


def test_who_was_in_a_run_asks_again_until_the_next_lets_it_in(caplog: pytest.LogCaptureFixture) -> None:
    knocks: list[str] = []
    with within(30), caplog.at_level(logging.INFO, "potluck"):
        asyncio.run(_two_runs(knocks))
    assert len(knocks) == 3
    assert len(set(knocks)) == 1, "it is the same process each time"
    said = [record.message for record in caplog.records if REASON in record.message and "waits" in record.message]
    assert len(said) == 1, "once, not with every knock"
    assert "it keeps asking" in said[0]
    assert "start the device again with that run's token" in said[0]


def test_who_was_in_no_run_yet_ends_and_says_why() -> None:
    async def story() -> None:
        address = free_address()
        leading = asyncio.create_task(_lead(address, lambda hello: JoinRefused(reason=REASON)))
        with pytest.raises(JoinRefusedError, match=REASON):
            await run_device(Endpoint(connect=(address,)), JoinRequest(name="a"), _idle)
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

    with within(30):
        asyncio.run(story())

"""Real processes that are killed and frozen."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest

from potluck.journal import Instant
from potluck.loops.messages import Invite, Joined, Lost, Message, Pull
from potluck.loops.node import Node
from potluck.worlds.live.coordinator_runtime import AdmissionHooks, CoordinatedRun, run_coordinator
from potluck.worlds.live.device_runtime import DeviceOptions, run_device
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRefused, JoinRequest
from potluck.worlds.live.zenoh_session import Endpoint, EndpointError
from tests.time_limits import within
from tests.worlds.live.live_fleet import RecordingJournal, free_address
from tests.worlds.live.processes import echo, run_coordinator_process, run_device_process, run_info, start

LEASE = 1.0


async def _next(node: Node, kind: type[Message], seconds: float = 10.0) -> Message:
    until = node.now() + seconds
    while (envelope := await node.receive(until)) is not None:
        if isinstance(envelope.message, kind):
            return envelope.message
    raise TimeoutError(f"no {kind.__name__} within {seconds} s")


def _host(address: str, coordinate: Callable[[Node], object], journal: RecordingJournal | None = None) -> object:
    def check_token(request: JoinRequest) -> str | JoinRefused:
        return request.name if request.token == "t" else JoinRefused(reason="the token is wrong; ask for a new one")

    async def lead() -> object:
        return await run_coordinator(
            Endpoint(listen=(address,), lease=LEASE),
            CoordinatedRun(info=run_info(LEASE), seed=0, journal=journal or RecordingJournal()),
            coordinate,  # type: ignore[arg-type]
            AdmissionHooks(check=check_token),
        )

    return asyncio.run(lead())


@pytest.mark.wall_clock
def test_killed_devices_are_noticed_immediately_frozen_ones_at_the_lease_and_both_rejoin() -> None:
    address, journal = free_address(), RecordingJournal()
    devices = {"a": start(run_device_process, address, "a", LEASE)}

    async def kill(node: Node) -> None:
        pid = devices["a"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        started_at = time.monotonic()
        lost = await _next(node, Lost)
        assert time.monotonic() - started_at < 1.0
        assert isinstance(lost, Lost)
        assert (lost.device, lost.incarnation) == ("a", 1)
        devices["a"].join()
        devices["a"] = start(run_device_process, address, "a", LEASE)
        assert await _next(node, Joined) == Joined("a", 2)

    async def freeze(node: Node) -> None:
        pid = devices["a"].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        started_at = time.monotonic()
        lost = await _next(node, Lost)
        assert 0.5 * LEASE < time.monotonic() - started_at < LEASE + 0.5
        assert isinstance(lost, Lost)
        assert lost.incarnation == 2
        await node.sleep(LEASE)
        os.kill(pid, signal.SIGCONT)
        assert await _next(node, Joined) == Joined("a", 3)

    async def coordinate(node: Node) -> None:
        assert await _next(node, Joined) == Joined("a", 1)
        await kill(node)
        await freeze(node)
        await node.send("a", Invite(5, 0, 7))
        assert await _next(node, Pull) == Pull(5, 3, 7)
        await node.sleep(0.3)

    try:
        with within(40):
            _host(address, coordinate, journal)
            devices["a"].join(5)
        assert devices["a"].exitcode == 0, "it ends with the run"
    finally:
        devices["a"].kill()
    assert [(record.name, record.fields) for record in journal.records if isinstance(record, Instant)] == [
        ("invited", {"turn": 5})
    ]


def test_devices_rejoin_after_the_coordinator_was_killed() -> None:
    address = free_address()
    first = start(run_coordinator_process, address, LEASE)
    incarnations: list[JoinAccepted] = []

    async def device_main(node: Node, accepted: JoinAccepted) -> None:
        incarnations.append(accepted)
        await echo(node, accepted)

    async def coordinate(node: Node) -> Message:
        await _next(node, Joined)
        await node.send("a", Invite(1, 0, 0))
        return await _next(node, Pull)

    async def scenario() -> object:
        endpoint = Endpoint(connect=(address,), lease=LEASE)
        device_task = asyncio.create_task(
            run_device(endpoint, JoinRequest(name="a"), device_main, DeviceOptions(once=True))
        )
        while not incarnations:
            await asyncio.sleep(0.01)
        first.kill()
        first.join()
        coordinator_task = run_coordinator(
            Endpoint(listen=(address,), lease=LEASE),
            CoordinatedRun(info=run_info(LEASE), seed=0, journal=RecordingJournal(), start_s=100.0),
            coordinate,
            AdmissionHooks(check=lambda request: request.name),
        )
        result = await coordinator_task
        assert await device_task == "the run is over"
        return result

    try:
        with within(30):
            assert asyncio.run(scenario()) == Pull(1, 1, 0)
    finally:
        first.kill()
    assert incarnations[0].era != incarnations[1].era


def test_an_unreachable_coordinator_is_an_error() -> None:
    address = free_address()
    endpoint = Endpoint(connect=(address,), connect_timeout_s=0.2)
    with within(20), pytest.raises(EndpointError, match=f"{address} cannot be reached.*is `potluck serve` running"):
        asyncio.run(run_device(endpoint, JoinRequest(name="a"), echo, DeviceOptions(once=True, timeout_s=0.3)))

"""However a run ends, no thread, socket or task is left."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import numpy as np
import pytest

from potluck.errors import DataError
from potluck.loops.messages import Joined, Lost, Push, Segment
from potluck.loops.node import COORDINATOR, Latch, Node, Pace, Step, Work
from potluck.payload import Payload
from potluck.worlds.device_error import DeviceError
from potluck.worlds.live.coordinator_runtime import AdmissionHooks, CoordinatedRun, run_coordinator
from potluck.worlds.live.device_runtime import DeviceOptions, run_device
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRequest, RunInfo
from potluck.worlds.live.start_condition import StartCondition
from potluck.worlds.live.zenoh_session import Endpoint, EndpointError, open_session
from tests import process_resources
from tests.time_limits import within
from tests.worlds.live.live_fleet import RecordingJournal, free_address, wait_until

Coordinate = Callable[[Node], Coroutine[Any, Any, Any]]
DeviceMain = Callable[[Node, JoinAccepted], Coroutine[Any, Any, None]]

LONG = Payload(30 << 20, (np.zeros(30 << 20, np.uint8),))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    threads, sockets, shared = (
        set(threading.enumerate()),
        process_resources.sockets(),
        process_resources.shared_memory(),
    )
    yield
    wait_until(lambda: set(threading.enumerate()) <= threads, 3)
    wait_until(lambda: process_resources.sockets() <= sockets, 3)
    assert process_resources.shared_memory() <= shared


def _run(coordinate: Coordinate, device_main: DeviceMain, address: str | None = None) -> list[Any]:
    """What became of the coordinator and of its device."""
    address = address or free_address()

    async def both() -> list[Any]:
        coordinator_task = run_coordinator(
            Endpoint(listen=(address,)),
            CoordinatedRun(info=RunInfo(run="test", job="", lease=1.0), seed=0, journal=RecordingJournal()),
            coordinate,
            AdmissionHooks(check=lambda request: request.name),
            StartCondition(devices=["a"]),
        )
        device_task = run_device(
            Endpoint(connect=(address,)), JoinRequest(name="a"), device_main, DeviceOptions(once=True)
        )
        return list(await asyncio.gather(asyncio.create_task(coordinator_task), device_task, return_exceptions=True))

    with within(20):
        return asyncio.run(both())


async def _idle(node: Node, accepted: JoinAccepted) -> None:
    while True:
        await node.receive()


async def _wait_for_loss(node: Node) -> str:
    while True:
        envelope = await node.receive(node.now() + 10)
        assert envelope is not None, "no device was lost"
        if isinstance(envelope.message, Lost):
            return envelope.message.reason


async def _wait_long(node: Node) -> None:
    await node.sleep(10)


def test_after_a_normal_end_the_port_is_free_again() -> None:
    async def coordinate(node: Node) -> str:
        return "cake"

    address = free_address()
    for _ in range(2):
        assert _run(coordinate, _idle, address) == ["cake", "the run is over"]
    host_name, port = address.removeprefix("tcp/").split(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host_name, int(port)))


def test_after_the_coordinator_raised() -> None:
    async def coordinate(node: Node) -> None:
        raise ZeroDivisionError("burnt")

    error, ended = _run(coordinate, _idle)
    assert isinstance(error, ZeroDivisionError)
    assert ended == "the run was interrupted"


def test_after_the_device_raised_and_its_error_is_reported() -> None:
    async def device_main(node: Node, accepted: JoinAccepted) -> None:
        await node.receive(node.now() + 0.1)
        raise ZeroDivisionError("burnt")

    ended, error = _run(_wait_long, device_main)
    assert isinstance(ended, DeviceError)
    assert str(ended).startswith(f"a: ZeroDivisionError: burnt ({__file__}:"), "with its file and line"
    assert 'raise ZeroDivisionError("burnt")' in ended.trace
    assert isinstance(error, ZeroDivisionError)


def test_a_device_whose_own_input_is_bad_is_lost_and_the_run_continues() -> None:
    async def device_main(node: Node, accepted: JoinAccepted) -> None:
        await node.receive(node.now() + 0.1)
        raise DataError("no such file")

    reason, error = _run(_wait_for_loss, device_main)
    assert reason.startswith("failed: DataError: no such file")
    assert isinstance(error, DataError)


def test_after_either_was_cancelled_in_the_middle_of_work_and_transfers() -> None:
    def burn(pace: Pace) -> None:
        pace.enter(0)

    async def busy(node: Node, *_: object) -> None:
        await node.receive(node.now() + 0.1)
        tasks = [asyncio.ensure_future(node.compute(Work([Step(0.0, gate=Latch())], burn))) for _ in range(2)]
        if node.name == COORDINATOR:
            tasks.append(asyncio.ensure_future(node.send("a", Segment(LONG, turn=0, first=0, last=0))))
        else:
            push = Push(LONG, turn=0, first=0, last=0, samples=1, loss=0.0)
            tasks.append(asyncio.ensure_future(node.send(COORDINATOR, push)))
        await node.sleep(0.1)
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await node.sleep(10)

    cancelled, ended = _run(busy, _idle)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert ended == "the run was interrupted"
    _, cancelled = _run(_wait_for_loss, busy)
    assert isinstance(cancelled, asyncio.CancelledError)


def test_after_a_device_was_cancelled_while_it_looked_for_the_coordinator() -> None:
    async def scenario() -> None:
        endpoint = Endpoint(connect=(free_address(),), connect_timeout_s=0.5)
        device_task = asyncio.create_task(run_device(endpoint, JoinRequest(name="a"), _idle))
        await asyncio.sleep(0.3)
        device_task.cancel()
        await asyncio.gather(device_task, return_exceptions=True)
        assert device_task.cancelled()

    with within(10):
        asyncio.run(scenario())


def test_an_address_in_use_is_an_error() -> None:
    address = free_address()

    async def coordinate(node: Node) -> None:
        pass

    with (
        open_session(Endpoint(listen=(address,)), "router"),
        pytest.raises(EndpointError, match=f"{address} cannot be listened"),
    ):
        asyncio.run(
            run_coordinator(
                Endpoint(listen=(address,)),
                CoordinatedRun(info=RunInfo(run="test", job=""), seed=0, journal=RecordingJournal()),
                coordinate,
                AdmissionHooks(check=lambda request: request.name),
            )
        )


def test_peers_connect_to_each_other() -> None:
    address = free_address()
    device = Endpoint(connect=(address,), listen=("tcp/127.0.0.1:0",), direct=True)
    with (
        open_session(Endpoint(listen=(address,), direct=True), "router"),
        open_session(device, "peer") as first,
        open_session(device, "peer") as second,
    ):
        wait_until(lambda: str(second.zid()) in map(str, first.info.peers_zid()), 5)


def test_membership_changes_are_announced_once_and_in_order() -> None:
    """A device that ends and starts again within one process has two incarnations."""
    rosters: list[dict[str, int]] = []
    address = free_address()

    async def coordinate(node: Node) -> list[str]:
        events: list[str] = []
        while len(events) < 3:
            envelope = await node.receive(node.now() + 10)
            assert envelope is not None
            assert isinstance(envelope.message, Joined | Lost)
            events.append(f"{type(envelope.message).__name__} {envelope.message.incarnation}")
        return events

    async def leave(node: Node, accepted: JoinAccepted) -> None:
        await node.receive(node.now() + 0.05)

    async def scenario() -> list[str]:
        coordinator_task = asyncio.create_task(
            run_coordinator(
                Endpoint(listen=(address,)),
                CoordinatedRun(info=RunInfo(run="test", job=""), seed=0, journal=RecordingJournal()),
                coordinate,
                AdmissionHooks(
                    check=lambda request: request.name, on_members_changed=lambda members: rosters.append(dict(members))
                ),
            )
        )
        for part in (leave, _idle):
            await run_device(Endpoint(connect=(address,)), JoinRequest(name="a"), part, DeviceOptions(once=True))
        return await coordinator_task

    with within(20):
        assert asyncio.run(scenario()) == ["Joined 1", "Lost 1", "Joined 2"]
    assert rosters[:3] == [{"a": 1}, {}, {"a": 2}]

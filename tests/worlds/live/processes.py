"""Devices and coordinators as separate processes, started by spawn, for tests that kill and freeze them."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.process import BaseProcess

from potluck.journal import Instant, Journal
from potluck.loops.messages import Invite, Pull
from potluck.loops.node import COORDINATOR, Node
from potluck.worlds.live.coordinator_runtime import AdmissionHooks, CoordinatedRun, run_coordinator
from potluck.worlds.live.device_runtime import DeviceOptions, run_device
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRequest, RunInfo
from potluck.worlds.live.zenoh_session import Endpoint

LIMIT_BYTES = 1 << 26


def run_info(lease: float) -> RunInfo:
    return RunInfo(run="test", job='[task]\nmodel = "mlp"\n', digest="d1", lease=lease, limit_bytes=LIMIT_BYTES)


async def echo(node: Node, accepted: JoinAccepted) -> None:
    """Answers every invitation with a pull of the same numbers, and records it."""
    while True:
        envelope = await node.receive()
        assert envelope is not None
        if isinstance(envelope.message, Invite):
            turn, count = envelope.message.turn, envelope.message.count
            node.record(Instant(node.name, "invited", node.now(), {"turn": turn}))
            await node.send(COORDINATOR, Pull(turn, node.incarnation, count))


def run_device_process(address: str, name: str, lease: float) -> None:
    endpoint = Endpoint(connect=(address,), lease=lease)
    asyncio.run(run_device(endpoint, JoinRequest(name=name, token="t"), echo, DeviceOptions(once=True)))


async def _wait(node: Node) -> None:
    while True:
        await node.receive()


def run_coordinator_process(address: str, lease: float) -> None:
    async def lead() -> None:
        await run_coordinator(
            Endpoint(listen=(address,), lease=lease),
            CoordinatedRun(info=run_info(lease), seed=0, journal=Journal()),
            _wait,
            AdmissionHooks(check=lambda request: request.name),
        )

    asyncio.run(lead())


def start(target: object, *arguments: object) -> BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
    process.start()
    return process

"""A device that takes part in a live run and lies in every number that it sends."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable

import msgspec
import numpy as np

from potluck.job import Job
from potluck.journal import Span
from potluck.loops.messages import Message, Push
from potluck.loops.node import Node
from potluck.payload import Payload
from potluck.run.device_state import DeviceStates, SavedDeviceStates
from potluck.run.rounds_setup import RoundsSetup
from potluck.worlds.live import key_expressions, wire_format
from potluck.worlds.live.control_messages import JournalBatch
from potluck.worlds.live.device_runtime import DeviceOptions, run_device
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRequest
from potluck.worlds.live.zenoh_session import Endpoint, open_session

__all__ = ["LyingNode", "take_part_lying"]


class LyingNode:
    """A node whose updates are absurd in turn: 3e38, a million times as long, or of a million samples."""

    def __init__(self, node: Node, told: Counter[str]) -> None:
        self._node, self._told = node, told
        self.name, self.incarnation = node.name, node.incarnation
        self.now, self.sleep, self.receive, self.compute = node.now, node.sleep, node.receive, node.compute
        self.speed, self.rng, self.record = node.speed, node.rng, node.record

    def send(self, to: str, message: Message) -> Awaitable[None]:
        return self._node.send(to, self._lie(message) if isinstance(message, Push) else message)

    def _lie(self, push: Push) -> Push:
        kind = ("3e38", "longer", "samples")[self._told.total() % 3]
        self._told[kind] += 1
        if kind == "samples":
            return msgspec.structs.replace(push, samples=1_000_000)
        *arrays, buffers = push.payload.arrays
        lied = [np.full_like(array, 3e38) if kind == "3e38" else array * np.float32(1e6) for array in arrays]
        return msgspec.structs.replace(push, payload=Payload(push.payload.nbytes, (*lied, buffers)))


async def take_part_lying(endpoint: Endpoint, request: JoinRequest, job: Job, told: Counter[str]) -> str:
    """Join, send records at no time, and lie in every update until the run ends; `told` counts the lies."""
    setup = await asyncio.to_thread(RoundsSetup.from_job, job, None, None)

    async def take_part(node: Node, accepted: JoinAccepted) -> None:
        if not told:
            told["spans"] += 1
            await node.receive(node.now() + 0.2)
            await _send_absurd_spans(endpoint, node, accepted)
        await setup.build_device_loop(LyingNode(node, told), DeviceStates(SavedDeviceStates(), {})).main()

    return await run_device(endpoint, request, take_part, DeviceOptions(once=True))


async def _send_absurd_spans(endpoint: Endpoint, node: Node, accepted: JoinAccepted) -> None:
    """Records that an honest device's own side would not send."""
    lane = key_expressions.lane_key(accepted.era, node.name, "coordinator", key_expressions.CONTROL)
    with open_session(endpoint, "client") as session:
        for bad in (math.nan, math.inf, -math.inf):
            batch = JournalBatch([Span(node.name, "push", bad, bad, {"bytes": 2**63 - 1})])
            await asyncio.to_thread(session.put, lane, wire_format.encode_frame(accepted.incarnation, 0, batch))
        await node.sleep(0.2)

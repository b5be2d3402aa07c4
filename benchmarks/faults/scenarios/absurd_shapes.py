"""Offers of any shape, dtype, size and chunk count, and any chunks, through the receiver of a node."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from potluck.loops.messages import Push
from potluck.loops.node import Envelope
from potluck.payload import Payload
from potluck.worlds.live import wire_format
from potluck.worlds.live.control_messages import ControlMessage
from potluck.worlds.live.link_shaping import LinkConditions
from potluck.worlds.live.peer_directory import NodeIdentity, PeerDirectory
from potluck.worlds.live.receiver import MessageReceiver

__all__ = ["SCENARIO"]

_EXTENTS = (0, 0, 1, 2, 7, 256, 2**16, 2**31, 2**47, 2**48, 2**48 + 1, -1)
_DTYPES = ("<f4", "<f8", "|u1", "|b1", "<i8", "<f3", "|O", "")
_SIZES = (-1, 0, 1, 1 << 10, 5000, 1 << 20, 2**40)
_LIMIT = 1 << 20


class _OffenceCounter(PeerDirectory):
    def __init__(self) -> None:
        self.offences = 0

    def incarnation_of(self, name: str) -> int | None:
        return 1

    def on_protocol_violation(self, name: str, incarnation: int | None, reason: str) -> None:
        self.offences += 1


def _random_offer(rng: random.Random, number: int) -> bytes:
    specs: list[Any] = [
        [rng.choice(_DTYPES), [rng.choice(_EXTENTS) for _ in range(rng.randrange(6))]] for _ in range(rng.randrange(3))
    ]
    push = Push(Payload(rng.choice((0, 0, 9, _LIMIT))), turn=1, first=0, last=0, samples=1, loss=0.0)
    return msgspec.msgpack.encode([1, 0, number, rng.choice(_SIZES), specs, push])


def _random_chunk(rng: random.Random, number: int) -> tuple[bytes, bytes]:
    data = bytes(rng.choice((0, 1, 4, 1024, 2048)))
    moment = rng.choice((0.0, 0.0, 1.0, 1e300, float("nan"), float("inf")))
    index = rng.choice((0, 0, 1, 2, 1000, 2**32 - 1))
    return data, wire_format.encode_chunk(1, number, index, data, moment, moment)


async def _feed_receiver(offers: int, seed: int) -> tuple[int, int, int]:
    """Exceptions, offences and messages that were delivered."""
    peers, delivered, rng = _OffenceCounter(), list[Envelope](), random.Random(seed)

    def send_control(to: str, message: ControlMessage, incarnation: int) -> None:
        wire_format.encode_frame(0, incarnation, message)

    identity = NodeIdentity(name="coordinator", incarnation=0, era="e", seed=0, lease=1.0, limit_bytes=_LIMIT)
    receiver = MessageReceiver(identity, peers, LinkConditions(), lambda: 10.0, send_control, delivered.append)
    exceptions = 0
    for number in range(offers):
        inputs = [(_random_offer(rng, number), None), *(_random_chunk(rng, number) for _ in range(2))]
        for data, header in inputs:
            try:
                receiver.handle_bulk("pi", data, header)
            except Exception:
                exceptions += 1
        if number % 20 == 0:
            await asyncio.sleep(0)
            receiver.drop_peer("pi")
    return exceptions, peers.offences, len(delivered)


def measure(context: ScenarioContext) -> list[Figure]:
    exceptions, offences, delivered = asyncio.run(_feed_receiver(context.size["offers"], context.seed))
    return [
        Figure(
            name="exceptions that are not refusals",
            unit="",
            measured=exceptions,
            goal=Goal("≤", 0),
            executed="measured",
        ),
        Figure(name="offences", unit="", measured=offences, goal=Goal("≥", 1), executed="measured"),
        Figure(name="messages that were delivered", unit="", measured=delivered, executed="measured"),
    ]


SCENARIO = FaultScenario(
    title="offers of absurd shapes",
    clause="An offer of an impossible shape, size or position is a refusal and an offence, never an exception.",
    executed="measured",
    measure=measure,
    quick={"offers": 50_000},
    full={"offers": 1_000_000},
    quick_s=5.0,
    full_s=200.0,
)

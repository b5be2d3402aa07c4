"""The receiver times each message from its first sign or the end of the previous one, whichever is later."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from potluck.loops.messages import HEADER_BYTES, Push
from potluck.loops.node import Envelope
from potluck.payload import Payload
from potluck.worlds.live import wire_format
from potluck.worlds.live.chunked_transfer import OutgoingTransfer
from potluck.worlds.live.link_shaping import LinkConditions
from potluck.worlds.live.peer_directory import NodeIdentity, PeerDirectory
from potluck.worlds.live.receiver import MessageReceiver

IDENTITY = NodeIdentity(name="coordinator", incarnation=0, era="e", seed=0, lease=1.0, limit_bytes=1 << 20)
KIB = 1 << 10


class _OneDevice(PeerDirectory):
    def incarnation_of(self, name: str) -> int | None:
        return 1


class _Arrivals:
    """Hands offers and chunks to a receiver at given times."""

    def __init__(self) -> None:
        self.now = 0.0
        self.delivered: list[Envelope] = []
        self.receiver = MessageReceiver(
            IDENTITY, _OneDevice(), LinkConditions(), lambda: self.now, lambda *args: None, self.delivered.append
        )

    def offer(self, at: float, number: int, kib: int) -> OutgoingTransfer:
        self.now = at
        values = np.zeros(kib * KIB, np.uint8)
        push = Push(Payload(values.nbytes, (values,)), turn=0, first=0, last=0, samples=0, loss=0.0)
        out = OutgoingTransfer(number, push, KIB, 8)
        self.receiver.handle_bulk("pi", wire_format.encode_offer(1, 0, number, out.message, out.arrays, KIB), None)
        return out

    def chunks(self, out: OutgoingTransfer, *times: float) -> None:
        for index, at in enumerate(times):
            self.now = at
            data = out.read_chunk(index)
            self.receiver.handle_bulk("pi", data, wire_format.encode_chunk(1, out.number, index, data))


def _seconds(arrivals: _Arrivals) -> list[float]:
    assert all(envelope.transfer is not None for envelope in arrivals.delivered)
    return [envelope.transfer.seconds for envelope in arrivals.delivered if envelope.transfer is not None]


def test_a_message_that_waited_for_another_is_timed_from_the_end_of_that_one() -> None:
    async def run() -> _Arrivals:
        arrivals = _Arrivals()
        first = arrivals.offer(1.0, 1, 2)
        second = arrivals.offer(1.1, 2, 1)
        arrivals.chunks(first, 2.0, 3.0)
        arrivals.chunks(second, 3.5)
        third = arrivals.offer(10.0, 3, 1)
        arrivals.chunks(third, 10.25)
        await asyncio.sleep(0)
        return arrivals

    arrivals = asyncio.run(run())
    assert _seconds(arrivals) == pytest.approx([2.0, 0.5, 0.25])
    assert {envelope.transfer.overhead_s for envelope in arrivals.delivered if envelope.transfer is not None} == {0.0}
    assert [envelope.transfer.nbytes for envelope in arrivals.delivered if envelope.transfer is not None] == [
        2 * KIB + HEADER_BYTES,
        KIB + HEADER_BYTES,
        KIB + HEADER_BYTES,
    ]

"""A send is done once earlier messages have arrived, not when buffers have taken its bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from potluck.loops.messages import Push
from potluck.payload import Payload
from potluck.worlds.live.link_shaping import LinkConditions
from potluck.worlds.live.peer_directory import PeerDirectory
from potluck.worlds.live.peer_throughput import PeerThroughput
from potluck.worlds.live.sender import MessageSender

KIB = 1 << 10


class _Peers(PeerDirectory):
    def incarnation_of(self, name: str) -> int | None:
        return 1

    async def before_last_chunk(self) -> None:
        pass


class _Buffers:
    """A transport that takes everything at once."""

    name = "coordinator"

    async def put_chunks(self, to: str, *chunks: Callable[[], object]) -> None:
        for encode in chunks:
            encode()

    def send_control(self, to: str, frame: bytes) -> None:
        pass


def _message() -> Push:
    values = np.zeros(64 * KIB, np.uint8)
    return Push(Payload(values.nbytes, (values,)), turn=0, first=0, last=0, samples=0, loss=0.0)


def _known_throughput(bytes_per_s: float) -> PeerThroughput:
    now_s = [0.0]
    throughput = PeerThroughput(lambda: now_s[0])
    now_s[0] = 1.0
    throughput.record_confirmed(int(bytes_per_s))
    return throughput


@pytest.mark.parametrize(("bytes_per_s", "done"), [(100e3, [True, False, False]), (1e9, [True, True, True])])
def test_on_a_slow_link_the_next_message_is_chosen_when_the_one_before_has_arrived(
    bytes_per_s: float, done: list[bool]
) -> None:
    async def run() -> None:
        sender = MessageSender(_Buffers(), 0, _Peers(), LinkConditions(), lambda: 0.0)  # type: ignore[arg-type]
        sender._throughputs["a"] = _known_throughput(bytes_per_s)
        futures = [sender.send("a", _message()) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert [future is not None and future.done() for future in futures] == done
        for number in (1, 2):
            sender.on_chunks_received("a", number, 2**32 - 1)
            await asyncio.sleep(0.05)
            assert all(future is not None and future.done() for future in futures[: number + 1])
        await sender.close()

    asyncio.run(run())


def test_an_aborted_message_does_not_hold_up_the_next() -> None:
    async def run() -> None:
        sender = MessageSender(_Buffers(), 0, _Peers(), LinkConditions(), lambda: 0.0)  # type: ignore[arg-type]
        sender._throughputs["a"] = _known_throughput(100e3)
        first, second, third = (sender.send("a", _message()) for _ in range(3))
        await asyncio.sleep(0.05)
        assert first is not None and second is not None and third is not None  # noqa: PT018
        second.cancel()
        await asyncio.sleep(0.05)
        assert not third.done()
        sender.drop_peer("a")
        await asyncio.sleep(0.05)
        assert third.done()
        await sender.close()

    asyncio.run(run())


def test_a_message_that_is_aborted_at_once_does_not_hold_up_those_after_it() -> None:
    async def run() -> None:
        sender = MessageSender(_Buffers(), 0, _Peers(), LinkConditions(), lambda: 0.0)  # type: ignore[arg-type]
        sender._throughputs["a"] = _known_throughput(100e3)
        aborted = sender.send("a", _message())
        assert aborted is not None
        aborted.cancel()  # before its task has run
        second, third = sender.send("a", _message()), sender.send("a", _message())
        assert second is not None
        assert third is not None
        await asyncio.sleep(0.05)
        sender.on_chunks_received("a", 2, 2**32 - 1)
        await asyncio.sleep(0.05)
        assert third.done()
        await sender.close()

    asyncio.run(run())

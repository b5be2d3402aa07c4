"""Offers and chunks of absurd shapes, counts and times are offences, never exceptions on Zenoh's threads."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.loops.messages import Push
from potluck.loops.node import Envelope
from potluck.payload import Payload
from potluck.worlds.live import wire_format
from potluck.worlds.live.chunk_layout import DTYPES
from potluck.worlds.live.chunked_transfer import Reassembly
from potluck.worlds.live.control_messages import ControlMessage
from potluck.worlds.live.link_shaping import LinkConditions
from potluck.worlds.live.peer_directory import NodeIdentity, PeerDirectory
from potluck.worlds.live.receiver import MessageReceiver
from potluck.worlds.live.wire_format import STATUS_REQUEST, WireError

LIMIT = 1 << 20
IDENTITY = NodeIdentity(name="coordinator", incarnation=0, era="e", seed=0, lease=1.0, limit_bytes=LIMIT)


class _Peers(PeerDirectory):
    """One device in incarnation 1; remembers its offences."""

    def __init__(self) -> None:
        self.offences: list[str] = []

    def incarnation_of(self, name: str) -> int | None:
        return 1 if name == "pi" else None

    def on_protocol_violation(self, name: str, incarnation: int | None, reason: str) -> None:
        self.offences.append(reason)


class _Bench:
    """A receiver, what it sent back, and what it delivered."""

    def __init__(self) -> None:
        self.peers = _Peers()
        self.sent: list[ControlMessage] = []
        self.delivered: list[Envelope] = []
        self.receiver = MessageReceiver(
            IDENTITY, self.peers, LinkConditions(), lambda: 10.0, self._send, self.delivered.append
        )

    def _send(self, to: str, message: ControlMessage, incarnation: int) -> None:
        wire_format.encode_frame(0, incarnation, message)  # must fit into a frame
        self.sent.append(message)


def _with_bench(story: Callable[[_Bench], None]) -> _Bench:
    async def run() -> _Bench:
        bench = _Bench()
        story(bench)
        await asyncio.sleep(0)
        return bench

    return asyncio.run(run())


def _offer(specs: Any, number: int = 7, chunk_bytes: int = 1 << 10, nbytes: int = 0) -> bytes:
    message = Push(Payload(nbytes), turn=1, first=0, last=0, samples=1, loss=0.0)
    raw = [1, 0, number, chunk_bytes, specs, message]
    return msgspec.msgpack.encode(raw)


@pytest.mark.parametrize(
    "shape",
    [(0, 2**48, 2**48), (2**48, 0, 2**48, 2**48), (2**48,) * 16, (0, *(2**48,) * 15), (1,) * 15 + (2**48,)],
)
def test_an_absurd_shape_is_an_offence(shape: tuple[int, ...]) -> None:
    bench = _with_bench(lambda bench: bench.receiver.handle_bulk("pi", _offer([["<f4", shape]]), None))
    assert len(bench.peers.offences) == 1
    assert not bench.delivered


def test_an_empty_array_of_a_usual_shape_is_accepted() -> None:
    bench = _with_bench(lambda bench: bench.receiver.handle_bulk("pi", _offer([["<f4", (0, 3, 224, 224)]]), None))
    (envelope,) = bench.delivered
    assert isinstance(envelope.message, Push)
    assert envelope.message.payload.arrays[0].shape == (0, 3, 224, 224)


_extents = st.one_of(st.integers(-3, 9), st.sampled_from([0, 1, 2**16, 2**31, 2**32, 2**47, 2**48, 2**48 + 1, 2**63]))
_shapes = st.lists(_extents, max_size=20)
_dtypes = st.sampled_from([*sorted(DTYPES), "|O", "<f3", "", ">f4", "<M8[s]", "|V9999999999"])
_specs = st.lists(st.tuples(_dtypes, _shapes), max_size=4)


@settings(max_examples=300, deadline=None)
@given(
    _specs,
    st.sampled_from([-1, 0, 1, 1 << 9, 1 << 10, 1 << 16, 1 << 24, 1 << 40]),
    st.sampled_from([-1, 0, 1, 5000, LIMIT, LIMIT + 1, 2**63 - 1]),
    st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 1000, 2**31, STATUS_REQUEST]), st.integers(0, 2000)), max_size=6),
)
def test_any_offer_and_any_chunks_are_accepted_or_offences(
    specs: list[tuple[str, list[int]]], chunk_bytes: int, nbytes: int, chunks: list[tuple[int, int]]
) -> None:
    def story(bench: _Bench) -> None:
        bench.receiver.handle_bulk("pi", _offer(specs, chunk_bytes=chunk_bytes, nbytes=nbytes), None)
        for index, size in chunks:
            data = bytes(size)
            bench.receiver.handle_bulk("pi", data, wire_format.encode_chunk(1, 7, index, data))

    bench = _with_bench(story)
    for envelope in bench.delivered:
        message = envelope.message
        assert isinstance(message, Push)
        assert sum(array.nbytes for array in message.payload.arrays) <= LIMIT


def test_a_gap_of_any_size_is_reported_in_a_frame() -> None:
    """Of a million chunks the last one arrives first: all the others are missing, and their list has a limit."""
    count = LIMIT >> 10
    assert count > 1000
    incoming = Reassembly(wire_format.decode_offer(_offer([["|u1", [1 << 30]]], nbytes=0), 1 << 30))
    last = (1 << 20) - 1
    skipped = incoming.add_chunk(wire_format.ChunkHeader(1, 7, last, 0), bytes(1 << 10))
    assert skipped == list(range(len(skipped)))
    assert 1000 < len(skipped) <= 4096
    assert incoming.missing_chunks() == list(range(16))


def test_a_chunk_that_overlaps_or_repeats_another_changes_nothing() -> None:
    incoming = Reassembly(wire_format.decode_offer(_offer([["|u1", [1536]]]), LIMIT))
    incoming.add_chunk(wire_format.ChunkHeader(1, 7, 1, 0), b"a" * 512)
    incoming.add_chunk(wire_format.ChunkHeader(1, 7, 1, 0), b"b" * 512)
    for index, size in ((0, 1536), (1, 1024), (2, 512), (2, 0)):
        with pytest.raises(WireError):
            incoming.add_chunk(wire_format.ChunkHeader(1, 7, index, 0), bytes(size))
    assert not incoming.is_complete
    incoming.add_chunk(wire_format.ChunkHeader(1, 7, 0, 0), bytes(1024))
    (array,) = incoming.assembled_message().payload.arrays
    assert bytes(array[1024:]) == b"a" * 512


@pytest.mark.parametrize("moment", [math.nan, math.inf, -math.inf, 1e300, 1e6])
def test_a_chunk_of_an_impossible_time_is_an_offence(moment: float) -> None:
    """Its time is when a shaped link has taken it; beyond a day from now it could only hold messages up."""

    def story(bench: _Bench) -> None:
        data = np.zeros(256, np.float32).tobytes()
        bench.receiver.handle_bulk("pi", _offer([["<f4", [256]]]), None)
        bench.receiver.handle_bulk("pi", data, wire_format.encode_chunk(1, 7, 0, data, 0.0, moment))
        bench.receiver.handle_bulk("pi", data, wire_format.encode_chunk(1, 7, 0, data, moment, 0.0))

    bench = _with_bench(story)
    assert len(bench.peers.offences) == 2
    assert not bench.delivered


def test_a_peer_dropped_while_its_last_chunk_arrives_is_no_exception() -> None:
    def story(bench: _Bench) -> None:
        receiver = bench.receiver
        receiver.handle_bulk("pi", _offer([["|u1", [10]]]), None)
        reassembly = receiver._reassemblies["pi", 7]
        receiver.drop_peer("pi")  # on the event loop, between the check and the completion
        receiver._finish_message("pi", 7, reassembly)

    assert not _with_bench(story).delivered

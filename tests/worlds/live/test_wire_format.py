"""Whatever a peer sends, decoding raises only WireError and allocates no more than the limit."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.loops.messages import Bulky, Invite, Joined, Message, Pull, Push, Segment, Stop
from potluck.payload import Payload
from potluck.worlds.live import wire_format
from potluck.worlds.live.chunk_layout import DTYPES
from potluck.worlds.live.chunked_transfer import OutgoingTransfer, Reassembly
from potluck.worlds.live.control_messages import (
    ChunksMissing,
    ChunksReceived,
    ControlMessage,
    DeviceHeartbeat,
    JournalBatch,
    Roster,
)
from potluck.worlds.live.wire_format import WireError

LIMIT = 1 << 20


def _push(*arrays: Any) -> Push:
    nbytes = sum(array.nbytes for array in arrays)
    return Push(Payload(nbytes, arrays), turn=1, first=0, last=3, samples=5, loss=0.5)


def _offer(message: Bulky, number: int = 7) -> bytes:
    return wire_format.encode_offer(1, 2, number, message, wire_format.arrays_to_send(message.payload), 1 << 16)


SMALL: list[Message | ControlMessage] = [
    Invite(1, 2, 3),
    Pull(4, 5, 6),
    Stop(),
    DeviceHeartbeat(True),
    ChunksReceived(1, 2),
    ChunksMissing(3, [4, 5]),
    Roster(1, {"a": 2}),
    JournalBatch([]),
]


@pytest.mark.parametrize("body", SMALL, ids=lambda body: type(body).__name__)
def test_a_frame_survives_a_round_trip(body: Message | ControlMessage) -> None:
    frame = wire_format.decode_frame(wire_format.encode_frame(3, 4, body))
    assert (frame.incarnation, frame.to_incarnation, frame.message) == (3, 4, body)


_ARRAYS = st.lists(
    st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 7), max_size=3)), min_size=1, max_size=5
)


@settings(max_examples=40)
@given(_ARRAYS, st.integers(0, 2**32))
def test_arrays_of_any_type_survive_a_round_trip(kinds: list[tuple[str, list[int]]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = tuple(
        rng.integers(0, 2, shape).astype(bool)
        if dtype == "|b1"
        else np.frombuffer(rng.bytes(np.dtype(dtype).itemsize * int(np.prod(shape))), dtype).reshape(shape)
        for dtype, shape in kinds
    )
    out = OutgoingTransfer(7, _push(*arrays), 1 << 10, window=8)
    incoming = Reassembly(wire_format.decode_offer(_offer_of(out), LIMIT))
    for index in range(out.layout.chunk_count):
        data = out.read_chunk(index)
        incoming.add_chunk(wire_format.decode_chunk(wire_format.encode_chunk(1, 7, index, data), data), data)
    assert incoming.is_complete
    message = incoming.assembled_message()
    assert msgspec.structs.replace(message, payload=Payload(0)) == msgspec.structs.replace(
        out.message, payload=Payload(0)
    )
    for array, received in zip(arrays, message.payload.arrays, strict=True):
        assert (received.dtype, received.shape, received.tobytes()) == (array.dtype, array.shape, array.tobytes())


def _offer_of(out: OutgoingTransfer) -> bytes:
    return wire_format.encode_offer(1, 2, out.number, out.message, out.arrays, out.chunk_bytes)


def test_a_payload_without_arrays_takes_its_bytes_and_arrives_empty() -> None:
    out = OutgoingTransfer(7, Segment(Payload(5000), turn=0, first=0, last=0), 1 << 10, window=8)
    assert out.layout.chunk_count == 5
    offer = wire_format.decode_offer(_offer_of(out), LIMIT)
    assert wire_format.announced_bytes(offer) == 5000
    assert wire_format.assemble_message(offer, wire_format.allocate_arrays(offer)).payload == Payload(5000)


def test_membership_events_are_not_accepted_from_a_peer() -> None:
    with pytest.raises(WireError, match="not a frame"):
        wire_format.decode_frame(wire_format.encode_frame(1, 1, Joined("a", 1)))


def test_the_base_class_of_control_messages_is_not_a_message() -> None:
    with pytest.raises(WireError, match="not a frame"):
        wire_format.decode_frame(wire_format.encode_frame(1, 1, ControlMessage()))


def test_messages_of_another_loop_can_be_registered() -> None:
    class Toast(Message, frozen=True):
        glasses: int

    with pytest.raises(WireError):
        wire_format.decode_frame(wire_format.encode_frame(1, 1, Toast(3)))
    before = list(wire_format._CONTROL_TYPES)
    try:
        wire_format.register_messages(Toast)
        assert wire_format.decode_frame(wire_format.encode_frame(1, 1, Toast(3))).message == Toast(3)
    finally:
        wire_format._CONTROL_TYPES[:] = before
        wire_format._DECODERS.clear()


def _claim(**changes: Any) -> bytes:
    """An offer with invalid contents."""
    raw = msgspec.msgpack.decode(_offer(_push(np.zeros(4))))
    for index, value in ((4, changes.get("specs")), (3, changes.get("chunk_bytes"))):
        if value is not None:
            raw[index] = value
    raw[5].update(changes.get("body", {}))
    return msgspec.msgpack.encode(raw)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (_claim(specs=[["<f8", [10 * 2**30 // 8]]]), "over the limit"),
        (_claim(specs=[["<f8", [2**40, 2**40, 2**40]]]), "over the limit"),
        (_claim(specs=[["<f8", [-1]]]), "not a frame"),
        (_claim(specs=[["|O", [1]]]), "arrays of type"),
        (_claim(specs=[["<M8[s]", [1]]]), "arrays of type"),
        (_claim(specs=[["", [1]]]), "arrays of type"),
        (_claim(specs=[["<f4", [1]]] * 5000), "not a frame"),
        (_claim(chunk_bytes=1), "not a frame"),
        (_claim(body={"payload": {"nbytes": 10 * 2**30, "arrays": []}}), "not between 0 and"),
        (_claim(body={"payload": {"nbytes": -5, "arrays": []}}), "not a frame"),
        (_claim(body={"payload": {"nbytes": 5, "arrays": [[[[1]]]]}}), "must not contain arrays"),
        (_claim(body={"payload": {"nbytes": 5, "arrays": []}, "turn": "1"}), "not a frame"),
        (b"\x91" * 60_000, "not a frame"),
        (b"\x00" * (wire_format.HEADER_LIMIT + 1), "over the limit"),
        (b"", "not a frame"),
    ],
)
def test_an_invalid_offer_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    tracemalloc.start()
    with pytest.raises(WireError, match=reason):
        wire_format.decode_offer(data, LIMIT)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_a_corrupt_chunk_is_detected() -> None:
    head = wire_format.encode_chunk(1, 2, 0, b"salt")
    assert wire_format.decode_chunk(head, b"salt").chunk_index == 0
    with pytest.raises(WireError, match="corrupt"):
        wire_format.decode_chunk(head, b"malt")
    with pytest.raises(WireError, match="chunk header"):
        wire_format.decode_chunk(head[:-1], b"salt")


def test_a_chunk_must_have_a_valid_index_and_length() -> None:
    incoming = Reassembly(wire_format.decode_offer(_offer(_push(np.zeros(4))), LIMIT))
    for index, data in ((1, b"x" * 32), (0, b"x" * 31), (0, b"x" * 33), (2**32 - 1, b"")):
        with pytest.raises(WireError, match="does not belong to"):
            incoming.add_chunk(wire_format.decode_chunk(wire_format.encode_chunk(1, 7, index, data), data), data)


def test_booleans_are_0_or_1() -> None:
    offer = wire_format.decode_offer(_offer(_push(np.zeros(4, bool))), LIMIT)
    with pytest.raises(WireError, match="boolean"):
        wire_format.assemble_message(offer, [np.array([0, 1, 2, 1], np.uint8).view(bool)])


# --- fuzz -------------------------------------------------------------------------------------------------------------


def _samples() -> list[bytes]:
    frames = [wire_format.encode_frame(1, 2, body) for body in SMALL]
    offers = [_offer(_push(np.zeros(3, np.float32), np.ones((2, 2), np.int8))), _offer(_push())]
    return [*frames, *offers, wire_format.encode_chunk(1, 2, 3, b"chunk")]


def _mutated(data: bytes, other: bytes, rng: random.Random) -> bytes:
    mutant = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        index = rng.randrange(len(mutant) + 1)
        match rng.randrange(6):
            case 0 if mutant:
                mutant[index % len(mutant)] ^= 1 << rng.randrange(8)
            case 1:
                mutant[index:index] = rng.randbytes(rng.choice((1, 2, 8)))
            case 2:
                del mutant[index : index + rng.choice((1, 2, 8))]
            case 3:
                mutant[index:index] = rng.choice(
                    (b"\xc6\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xcf" + b"\xff" * 8)
                )
            case 4:
                mutant[index:] = other[index:]
            case _ if mutant:
                mutant[index % len(mutant)] = rng.randrange(256)
    return bytes(mutant)


def _fuzz(times: int) -> int:
    """How many mutated inputs were refused; those accepted stay within the limit."""
    rng, samples, refused = random.Random(0), _samples(), 0
    for number in range(times):
        data = _mutated(samples[number % len(samples)], rng.choice(samples), rng)
        try:
            wire_format.decode_frame(data)
        except WireError:
            refused += 1
        try:
            offer = wire_format.decode_offer(data, LIMIT)
            assert wire_format.announced_bytes(offer) <= LIMIT
            incoming = Reassembly(offer)
            incoming.add_chunk(wire_format.decode_chunk(data[:40], data), data)
        except WireError:
            refused += 1
    return refused


def test_mutated_bytes_raise_only_wire_errors() -> None:
    assert _fuzz(5_000) > 5_000


@pytest.mark.long
def test_a_hundred_thousand_mutations_raise_only_wire_errors() -> None:
    assert _fuzz(100_000) > 100_000

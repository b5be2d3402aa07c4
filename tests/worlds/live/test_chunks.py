"""Long messages in chunks: every byte gets to its place, and only what got lost goes again."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.loops.messages import Push
from potluck.payload import Payload
from potluck.worlds.live import wire
from potluck.worlds.live.chunks import Incoming, Outgoing
from potluck.worlds.live.layout import Layout

WINDOW = 8


@settings(max_examples=40)
@given(st.lists(st.integers(0, 300), max_size=6), st.integers(1, 100))
def test_chunks_cover_every_byte_once(sizes: list[int], chunk_bytes: int) -> None:
    layout = Layout(sizes, chunk_bytes)
    rows = [bytes((7 * array + place) % 256 for place in range(size)) for array, size in enumerate(sizes)]
    copies = [bytearray(size) for size in sizes]
    for index in reversed(range(layout.chunks)):
        data = layout.read(index, [memoryview(row) for row in rows])
        assert len(data) == layout.size(index)
        layout.write(index, data, [memoryview(copy) for copy in copies])
    assert [bytes(copy) for copy in copies] == rows


def _message(kib: int) -> Push:
    numbers = np.random.default_rng(kib).integers(0, 256, kib << 10, np.uint8)
    return Push(Payload(numbers.nbytes, (numbers,)), turn=0, first=0, last=0, samples=0, loss=0.0)


def _open(kib: int) -> tuple[Outgoing, Incoming]:
    out = Outgoing(1, _message(kib), 1 << 10, WINDOW)
    offer = wire.encode_offer(1, 1, 1, out.message, out.arrays, out.chunk_bytes)
    return out, Incoming(wire.decode_offer(offer, 1 << 20))


@settings(max_examples=40)
@given(st.integers(1, 60), st.sets(st.integers(0, 59)), st.sets(st.integers(0, 59)))
def test_only_what_got_lost_is_sent_again(kib: int, lost_once: set[int], lost_twice: set[int]) -> None:
    out, incoming = _open(kib)
    losses = [*lost_once, *lost_twice]
    sent = 0
    while not out.is_there:
        index = out.due()
        if index is None:  # silence: the receiver is asked
            out.asked()
            out.confirm(incoming.count)
            out.repeat(incoming.missing())
            continue
        sent += 1
        if index in losses:
            losses.remove(index)
            continue
        data = out.read(index)
        skipped = incoming.put(wire.decode_chunk(wire.encode_chunk(1, 1, index, data), data), data)
        out.repeat(skipped)
        out.confirm(incoming.count)
    assert incoming.is_whole
    assert incoming.message().payload.arrays[0].tobytes() == out.message.payload.arrays[0].tobytes()
    gone = sum(index < kib for index in lost_once) + sum(index < kib for index in lost_twice)
    assert sent == kib + gone
    assert out.sent_again == gone


def test_no_more_than_a_window_is_on_its_way() -> None:
    out, _ = _open(3 * WINDOW)
    assert [out.due() for _ in range(WINDOW + 2)] == [*range(WINDOW), None, None]
    out.confirm(2)
    assert [out.due() for _ in range(3)] == [WINDOW, WINDOW + 1, None]


def test_a_chunk_that_comes_twice_counts_once() -> None:
    out, incoming = _open(2)
    data = out.read(0)
    for _ in range(2):
        incoming.put(wire.decode_chunk(wire.encode_chunk(1, 1, 0, data), data), data)
    assert incoming.count == 1
    assert not incoming.is_whole


def test_a_peer_cannot_ask_for_what_was_never_sent() -> None:
    out, _ = _open(3)
    out.due()
    out.repeat([0, 1, 2, 99, 0])
    out.confirm(99)
    assert out.got == 1
    assert not out.is_there


def test_an_answer_that_does_not_know_of_what_went_again_counts_once() -> None:
    """Asked, told of a gap meanwhile, and answered then: all three speak of the same loss."""
    out, _ = _open(10)
    while out.due() is not None:
        pass
    out.asked()
    out.repeat([2, 3])  # the gap, seen by the receiver itself
    assert [out.due(), out.due(), out.due()] == [2, 3, None]
    out.repeat([2, 3])  # the answer
    assert out.due() is None
    out.asked()
    out.repeat([3])  # lost again
    assert out.due() == 3

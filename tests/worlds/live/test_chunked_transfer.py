"""Chunked messages: every byte is written to its position, and only lost chunks are sent again."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.loops.messages import Push
from potluck.payload import Payload
from potluck.worlds.live import wire_format
from potluck.worlds.live.chunk_layout import ChunkLayout
from potluck.worlds.live.chunked_transfer import OutgoingTransfer, Reassembly

WINDOW = 8


@settings(max_examples=40)
@given(st.lists(st.integers(0, 300), max_size=6), st.integers(1, 100))
def test_chunks_cover_every_byte_once(sizes: list[int], chunk_bytes: int) -> None:
    layout = ChunkLayout(sizes, chunk_bytes)
    rows = [bytes((7 * array + index) % 256 for index in range(size)) for array, size in enumerate(sizes)]
    copies = [bytearray(size) for size in sizes]
    for index in reversed(range(layout.chunk_count)):
        data = layout.read_chunk(index, [memoryview(row) for row in rows])
        assert len(data) == layout.chunk_size(index)
        layout.write_chunk(index, data, [memoryview(copy) for copy in copies])
    assert [bytes(copy) for copy in copies] == rows


def _message(kib: int) -> Push:
    values = np.random.default_rng(kib).integers(0, 256, kib << 10, np.uint8)
    return Push(Payload(values.nbytes, (values,)), turn=0, first=0, last=0, samples=0, loss=0.0)


def _open(kib: int) -> tuple[OutgoingTransfer, Reassembly]:
    out = OutgoingTransfer(1, _message(kib), 1 << 10, WINDOW)
    offer = wire_format.encode_offer(1, 1, 1, out.message, out.arrays, out.chunk_bytes)
    return out, Reassembly(wire_format.decode_offer(offer, 1 << 20))


@settings(max_examples=40)
@given(st.integers(1, 60), st.sets(st.integers(0, 59)), st.sets(st.integers(0, 59)))
def test_only_lost_chunks_are_queued_again(kib: int, lost_once: set[int], lost_twice: set[int]) -> None:
    out, incoming = _open(kib)
    losses = [*lost_once, *lost_twice]
    sent = 0
    while not out.is_confirmed:
        index = out.next_chunk()
        if index is None:  # silence: the sender requests the status
            out.mark_status_requested()
            out.confirm_chunks(incoming.count)
            out.resend_chunks(incoming.missing_chunks())
            continue
        sent += 1
        if index in losses:
            losses.remove(index)
            continue
        data = out.read_chunk(index)
        skipped = incoming.add_chunk(wire_format.decode_chunk(wire_format.encode_chunk(1, 1, index, data), data), data)
        out.resend_chunks(skipped)
        out.confirm_chunks(incoming.count)
    assert incoming.is_complete
    assert incoming.assembled_message().payload.arrays[0].tobytes() == out.message.payload.arrays[0].tobytes()
    lost_count = sum(index < kib for index in lost_once) + sum(index < kib for index in lost_twice)
    assert sent == kib + lost_count
    assert out.resent == lost_count


def test_at_most_a_window_is_unconfirmed() -> None:
    out, _ = _open(3 * WINDOW)
    assert [out.next_chunk() for _ in range(WINDOW + 2)] == [*range(WINDOW), None, None]
    out.confirm_chunks(2)
    assert [out.next_chunk() for _ in range(3)] == [WINDOW, WINDOW + 1, None]


def test_a_duplicate_chunk_counts_once() -> None:
    out, incoming = _open(2)
    data = out.read_chunk(0)
    for _ in range(2):
        incoming.add_chunk(wire_format.decode_chunk(wire_format.encode_chunk(1, 1, 0, data), data), data)
    assert incoming.count == 1
    assert not incoming.is_complete


def test_a_peer_cannot_request_chunks_that_were_never_sent() -> None:
    out, _ = _open(3)
    out.next_chunk()
    out.resend_chunks([0, 1, 2, 99, 0])
    out.confirm_chunks(99)
    assert out.confirmed == 1
    assert not out.is_confirmed


def test_an_outdated_answer_does_not_resend_twice() -> None:
    """A status request, a gap report meanwhile and the answer are all about the same loss."""
    out, _ = _open(10)
    while out.next_chunk() is not None:
        pass
    out.mark_status_requested()
    out.resend_chunks([2, 3])  # the gap, seen by the receiver itself
    assert [out.next_chunk(), out.next_chunk(), out.next_chunk()] == [2, 3, None]
    out.resend_chunks([2, 3])  # the answer
    assert out.next_chunk() is None
    out.mark_status_requested()
    out.resend_chunks([3])  # lost again
    assert out.next_chunk() == 3

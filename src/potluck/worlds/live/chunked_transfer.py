"""The state of one chunked message at each end: which chunks were sent, have arrived, or must be sent again.

Neither end touches a socket; `sender.py` and `receiver.py` move the bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from potluck.loops.messages import Bulky
from potluck.worlds.live import wire_format
from potluck.worlds.live.chunk_layout import ChunkLayout, array_bytes
from potluck.worlds.live.wire_format import ChunkHeader, TransferOffer, WireError

__all__ = ["CONFIRM_EVERY", "OutgoingTransfer", "Reassembly"]

CONFIRM_EVERY = 2  # chunks between two confirmations of the receiver
_MAX_REQUESTED = 16  # missing chunks that are listed in one answer
_MAX_SKIPPED = 4096  # lost chunks that are reported at once; a frame has no room for more


class OutgoingTransfer:
    """The sender's state of one message."""

    def __init__(self, number: int, message: Bulky, chunk_bytes: int, window: int) -> None:
        self.number = number
        self.message = message
        self.chunk_bytes = chunk_bytes
        self._window = window  # chunks that may be unconfirmed
        self.arrays = wire_format.arrays_to_send(message.payload)
        self._views = [array_bytes(array) for array in self.arrays]
        self.layout = ChunkLayout([view.nbytes for view in self._views], chunk_bytes)
        self.sent = 0  # chunks that were sent at least once
        self.resent = 0
        self.confirmed = 0  # chunks that have arrived
        self._to_resend: deque[int] = deque()
        self._resent_since_request: set[int] = set()  # resent after the last status request: no answer counts them yet

    @property
    def is_sent(self) -> bool:
        return self.sent == self.layout.chunk_count

    @property
    def is_confirmed(self) -> bool:
        return self.confirmed == self.layout.chunk_count

    @property
    def unconfirmed_bytes(self) -> int:
        """What may still be on its way."""
        return (self.sent - self.confirmed) * self.chunk_bytes

    def next_chunk(self) -> int | None:
        """The chunk to send next: first those that got lost, then those that fit into the window."""
        if self._to_resend:
            self.resent += 1
            index = self._to_resend.popleft()
            self._resent_since_request.add(index)
            return index
        if self.sent < self.layout.chunk_count and self.sent - self.confirmed < self._window:
            self.sent += 1
            return self.sent - 1
        return None

    def next_chunks(self, most: int) -> list[int]:
        """More chunks to send together with the one that is due; never the last one of the message."""
        room = min(most, self._window - (self.sent - self.confirmed), self.layout.chunk_count - 1 - self.sent)
        first, self.sent = self.sent, self.sent + max(0, room)
        return list(range(first, self.sent))

    def confirm_chunks(self, count: int) -> None:
        """The receiver has `count` chunks."""
        self.confirmed = max(self.confirmed, min(count, self.sent))

    def mark_status_requested(self) -> None:
        """A status request follows the chunks that were sent so far."""
        self._resent_since_request.clear()

    def resend_chunks(self, indices: Sequence[int]) -> None:
        """Queue chunks that did not arrive."""
        known = self._resent_since_request.union(self._to_resend)
        self._to_resend.extend(index for index in indices if index < self.sent and index not in known)

    def read_chunk(self, index: int) -> bytes:
        return self.layout.read_chunk(index, self._views)


class Reassembly:
    """The receiver's state of one message: chunks are written straight into the final arrays."""

    def __init__(self, offer: TransferOffer, started_at: float = 0.0) -> None:
        self.offer = offer
        self.started_at = started_at
        self._arrays = wire_format.allocate_arrays(offer)
        self._views = [array_bytes(array) for array in self._arrays]
        self._layout = ChunkLayout([view.nbytes for view in self._views], offer.chunk_bytes)
        self._present = bytearray(self._layout.chunk_count)
        self.count = 0
        self._highest = -1
        self.due_time = 0.0  # when a shaped link would have delivered the chunks that have arrived

    @property
    def nbytes(self) -> int:
        return self._layout.nbytes

    @property
    def is_complete(self) -> bool:
        return self.count == self._layout.chunk_count

    def add_chunk(self, head: ChunkHeader, data: bytes) -> list[int]:
        """Store a chunk; returns the chunks before it that must have been lost, since a lane keeps its order."""
        index = head.chunk_index
        if index >= self._layout.chunk_count or len(data) != self._layout.chunk_size(index):
            raise WireError(f"chunk {index} of {len(data)} bytes does not belong to message {head.number}")
        if not self._present[index]:
            self._layout.write_chunk(index, data, self._views)
            self._present[index] = 1
            self.count += 1
        skipped = self._absent_chunks(self._highest + 1, index, _MAX_SKIPPED)
        self._highest = max(self._highest, index)
        return skipped

    def missing_chunks(self) -> list[int]:
        """Chunks that have not arrived, at most as many as a sender can resend soon."""
        return self._absent_chunks(0, len(self._present), _MAX_REQUESTED)

    def _absent_chunks(self, start: int, stop: int, most: int) -> list[int]:
        """The first chunks of a range that have not arrived, at most `most` of them."""
        absent: list[int] = []
        index = self._present.find(0, start, stop)
        while index >= 0 and len(absent) < most:
            absent.append(index)
            index = self._present.find(0, index + 1, stop)
        return absent

    def assembled_message(self) -> Bulky:
        return wire_format.assemble_message(self.offer, self._arrays)

"""A long message on its way, seen from either end: which chunks were sent, which are there, which have to go again.

Neither end knows a socket; `carrier` moves the bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from potluck.loops.messages import Bulky
from potluck.worlds.live import wire_format
from potluck.worlds.live.chunk_layout import ChunkLayout, array_bytes
from potluck.worlds.live.wire_format import ChunkHeader, TransferOffer, WireError

__all__ = ["CONFIRMED", "OutgoingTransfer", "Reassembly"]

CONFIRMED = 2  # chunks, after so many of which a receiver says what it has
_ASKED_FOR = 16  # missing chunks that are named in one answer


class OutgoingTransfer:
    """The sender's end."""

    def __init__(self, number: int, message: Bulky, chunk_bytes: int, window: int) -> None:
        self.number = number
        self.message = message
        self.chunk_bytes = chunk_bytes
        self._window = window  # chunks that may be on their way unconfirmed
        self.arrays = wire_format.arrays_to_send(message.payload)
        self._views = [array_bytes(array) for array in self.arrays]
        self.layout = ChunkLayout([view.nbytes for view in self._views], chunk_bytes)
        self.sent = 0  # chunks that were sent at least once
        self.resent = 0
        self.confirmed = 0  # chunks that are there
        self._to_resend: deque[int] = deque()
        self._resent_since_request: set[int] = (
            set()
        )  # sent again behind the last question, so that no answer knows of them yet

    @property
    def is_sent(self) -> bool:
        return self.sent == self.layout.chunk_count

    @property
    def is_confirmed(self) -> bool:
        return self.confirmed == self.layout.chunk_count

    def next_chunk(self) -> int | None:
        """The chunk to send next: what got lost first, then what fits into the window."""
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
        """Chunks that may go along with the one that was due, none of them the last of all."""
        room = min(most, self._window - (self.sent - self.confirmed), self.layout.chunk_count - 1 - self.sent)
        first, self.sent = self.sent, self.sent + max(0, room)
        return list(range(first, self.sent))

    def confirm_chunks(self, count: int) -> None:
        """So many chunks are there."""
        self.confirmed = max(self.confirmed, min(count, self.sent))

    def mark_status_requested(self) -> None:
        """The receiver is asked, behind all that was sent so far."""
        self._resent_since_request.clear()

    def resend_chunks(self, indices: Sequence[int]) -> None:
        """These did not come."""
        known = self._resent_since_request.union(self._to_resend)
        self._to_resend.extend(index for index in indices if index < self.sent and index not in known)

    def read_chunk(self, index: int) -> bytes:
        return self.layout.read_chunk(index, self._views)


class Reassembly:
    """The receiver's end: chunks go straight to where they belong."""

    def __init__(self, offer: TransferOffer) -> None:
        self.offer = offer
        self._arrays = wire_format.allocate_arrays(offer)
        self._views = [array_bytes(array) for array in self._arrays]
        self._layout = ChunkLayout([view.nbytes for view in self._views], offer.chunk_bytes)
        self._present = bytearray(self._layout.chunk_count)
        self.count = 0
        self._highest = -1
        self.due_time = 0.0  # when a shaped link will have brought all that is here

    @property
    def nbytes(self) -> int:
        return self._layout.nbytes

    @property
    def is_complete(self) -> bool:
        return self.count == self._layout.chunk_count

    def add_chunk(self, head: ChunkHeader, data: bytes) -> list[int]:
        """Take a chunk in; says which before it must have got lost, since a lane keeps its order."""
        place = head.chunk_index
        if place >= self._layout.chunk_count or len(data) != self._layout.chunk_size(place):
            raise WireError(f"chunk {place} of {len(data)} bytes is not part of message {head.number}")
        if not self._present[place]:
            self._layout.write_chunk(place, data, self._views)
            self._present[place] = 1
            self.count += 1
        skipped = [index for index in range(self._highest + 1, place) if not self._present[index]]
        self._highest = max(self._highest, place)
        return skipped

    def missing_chunks(self) -> list[int]:
        """Whatever is not here, up to what a sender can soon send again."""
        return [index for index, here in enumerate(self._present) if not here][:_ASKED_FOR]

    def assembled_message(self) -> Bulky:
        return wire_format.assemble_message(self.offer, self._arrays)

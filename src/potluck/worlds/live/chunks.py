"""A long message on its way, seen from either end: which chunks were sent, which are there, which have to go again.

Neither end knows a socket; `carrier` moves the bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from potluck.loops.messages import Bulky
from potluck.worlds.live import wire
from potluck.worlds.live.layout import Layout, bytes_of
from potluck.worlds.live.wire import ChunkHead, Offer, WireError

__all__ = ["CONFIRMED", "Incoming", "Outgoing"]

CONFIRMED = 2  # chunks, after so many of which a receiver says what it has
_ASKED_FOR = 16  # missing chunks that are named in one answer


class Outgoing:
    """The sender's end."""

    def __init__(self, number: int, message: Bulky, chunk_bytes: int, window: int) -> None:
        self.number = number
        self.message = message
        self.chunk_bytes = chunk_bytes
        self._window = window  # chunks that may be on their way unconfirmed
        self.arrays = wire.arrays_to_send(message.payload)
        self._views = [bytes_of(array) for array in self.arrays]
        self.layout = Layout([view.nbytes for view in self._views], chunk_bytes)
        self.sent = 0  # chunks that were sent at least once
        self.sent_again = 0
        self.got = 0  # chunks that are there
        self._again: deque[int] = deque()
        self._since_asked: set[int] = set()  # sent again behind the last question, so that no answer knows of them yet

    @property
    def is_taken(self) -> bool:
        return self.sent == self.layout.chunks

    @property
    def is_there(self) -> bool:
        return self.got == self.layout.chunks

    def due(self) -> int | None:
        """The chunk to send next: what got lost first, then what fits into the window."""
        if self._again:
            self.sent_again += 1
            index = self._again.popleft()
            self._since_asked.add(index)
            return index
        if self.sent < self.layout.chunks and self.sent - self.got < self._window:
            self.sent += 1
            return self.sent - 1
        return None

    def more(self, most: int) -> list[int]:
        """Chunks that may go along with the one that was due, none of them the last of all."""
        room = min(most, self._window - (self.sent - self.got), self.layout.chunks - 1 - self.sent)
        first, self.sent = self.sent, self.sent + max(0, room)
        return list(range(first, self.sent))

    def confirm(self, count: int) -> None:
        """So many chunks are there."""
        self.got = max(self.got, min(count, self.sent))

    def asked(self) -> None:
        """The receiver is asked, behind all that was sent so far."""
        self._since_asked.clear()

    def repeat(self, indices: Sequence[int]) -> None:
        """These did not come."""
        known = self._since_asked.union(self._again)
        self._again.extend(index for index in indices if index < self.sent and index not in known)

    def read(self, index: int) -> bytes:
        return self.layout.read(index, self._views)


class Incoming:
    """The receiver's end: chunks go straight to where they belong."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self._arrays = wire.allocate(offer)
        self._views = [bytes_of(array) for array in self._arrays]
        self._layout = Layout([view.nbytes for view in self._views], offer.chunk_bytes)
        self._here = bytearray(self._layout.chunks)
        self.count = 0
        self._highest = -1
        self.due = 0.0  # when a shaped link will have brought all that is here

    @property
    def nbytes(self) -> int:
        return self._layout.nbytes

    @property
    def is_whole(self) -> bool:
        return self.count == self._layout.chunks

    def put(self, head: ChunkHead, data: bytes) -> list[int]:
        """Take a chunk in; says which before it must have got lost, since a lane keeps its order."""
        place = head.place
        if place >= self._layout.chunks or len(data) != self._layout.size(place):
            raise WireError(f"chunk {place} of {len(data)} bytes is not part of message {head.number}")
        if not self._here[place]:
            self._layout.write(place, data, self._views)
            self._here[place] = 1
            self.count += 1
        skipped = [index for index in range(self._highest + 1, place) if not self._here[index]]
        self._highest = max(self._highest, place)
        return skipped

    def missing(self) -> list[int]:
        """Whatever is not here, up to what a sender can soon send again."""
        return [index for index, here in enumerate(self._here) if not here][:_ASKED_FOR]

    def message(self) -> Bulky:
        return wire.whole(self.offer, self._arrays)

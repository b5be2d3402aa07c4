"""Makes the inputs of a hostile peer: recorded messages with current numbers, mutated as bytes or as values."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from benchmarks.faults.fuzz.mutation import Mutator
from potluck.loops.messages import Bulky, Invite, Message
from potluck.loops.pipeline.messages import Halt
from potluck.worlds.live import wire_format
from potluck.worlds.live.control_messages import ControlMessage
from potluck.worlds.live.wire_format import WireError

__all__ = ["HostileSender", "WireInput"]

WireInput = tuple[bytes, bytes | None, bool]  # data, chunk header, whether it is bulk data

_CHUNK_BYTES = 1 << 16
_MOST_NUMBER = 2**62
_NUMBERS = ("turn", "term", "attempt")


class HostileSender:
    """Draws what to send next."""

    def __init__(
        self,
        generator: random.Random,
        messages: Sequence[Message],
        controls: Sequence[ControlMessage],
        limit_bytes: int,
    ) -> None:
        self._random = generator
        self._mutator = Mutator(generator)
        self._small: list[Any] = [message for message in messages if not isinstance(message, Bulky)]
        self._bulky = [message for message in messages if isinstance(message, Bulky)]
        self._controls = list(controls)
        self._limit_bytes = limit_bytes
        self._number = 0
        self._current: dict[str, dict[str, int]] = {}  # device → field → its newest value

    def note_message(self, device: str, message: Any) -> None:
        """Remember the turn or term of the newest message to a device, which the next ones will name."""
        for field in _NUMBERS:
            value = getattr(message, field, None)
            if isinstance(value, int):
                self._current.setdefault(device, {})[field] = value

    def mutated(self, data: bytes) -> bytes:
        return self._mutator.mutate_values(data) if self._random.getrandbits(1) else self._mutator.mutate_bytes(data)

    def next_inputs(self, device: str, incarnation: int) -> list[WireInput]:
        """One control frame, or an offer with its chunk."""
        kind = self._random.getrandbits(5)
        if kind >= 20:
            return list(self._bulk_inputs(incarnation, self._refreshed(device, self._draw(self._bulky)), kind))
        frame = self._frame(device, incarnation, self._small if kind % 3 else self._controls)
        if kind < 2:
            return [(self._mutator.mutate_bytes(frame), None, False)]
        return [(self._mutator.mutate_values(frame, keep_types=kind >= 4), None, False)]

    def valid_inputs(self, incarnation: int, message: Any) -> list[WireInput]:
        """A message as it is."""
        if not isinstance(message, Bulky):
            return [(wire_format.encode_frame(incarnation, 0, message), None, False)]
        return list(self._bulk_inputs(incarnation, message, -1))

    def _draw(self, values: Sequence[Any]) -> Any:
        return values[self._random.randrange(len(values))]

    def _frame(self, device: str, incarnation: int, messages: Sequence[Any]) -> bytes:
        return wire_format.encode_frame(incarnation, 0, self._refreshed(device, self._draw(messages)))

    def _refreshed(self, device: str, message: Any) -> Any:
        """With the current turn, term or attempt; an invitation or a new term gets the next one."""
        known = self._current.setdefault(device, dict.fromkeys(_NUMBERS, 0))
        if isinstance(message, Invite | Halt):
            field = "turn" if isinstance(message, Invite) else "term"
            known[field] = min(known.get(field, 0) + 1, _MOST_NUMBER)
        current = {field: value for field, value in known.items() if hasattr(message, field)}
        return msgspec.structs.replace(message, **current) if current else message

    def _bulk_inputs(self, incarnation: int, message: Bulky, kind: int) -> Iterator[WireInput]:
        """An offer and its chunk: valid (-1), or changed in one of several ways (20 to 31)."""
        self._number = self._number + 1 if self._number < _MOST_NUMBER else 0
        arrays = wire_format.arrays_to_send(message.payload)
        offer = wire_format.encode_offer(incarnation, 0, self._number, message, arrays, _CHUNK_BYTES)
        data = b"".join(array.tobytes() for array in arrays)
        if kind == 20:
            yield self._mutator.mutate_bytes(offer), None, True
            return
        if kind in (21, 22, 23, 24, 25):
            offer = self._mutator.mutate_values(offer, keep_types=kind > 22)
            try:
                decoded = wire_format.decode_offer(offer, self._limit_bytes)
            except (WireError, ValueError, OverflowError, MemoryError):
                yield offer, None, True
                return
            data = self._fill(data, wire_format.announced_bytes(decoded))
        elif kind >= 26:
            data = self._poison(data)
        yield offer, None, True
        if len(data) <= _CHUNK_BYTES:
            head = wire_format.encode_chunk(incarnation, self._number, 0, data)
            yield data, self._mutator.mutate_bytes(head) if kind == 31 else head, True

    def _fill(self, data: bytes, nbytes: int) -> bytes:
        """As many bytes as the offer announces, if a chunk holds them."""
        nbytes = min(nbytes, _CHUNK_BYTES + 1)
        return (data * math.ceil(nbytes / max(1, len(data))))[:nbytes] if data else bytes(nbytes)

    def _poison(self, data: bytes) -> bytes:
        """Some of the numbers replaced by extreme ones."""
        values = np.frombuffer(data[: len(data) // 4 * 4], np.float32).copy()
        if values.size:
            values[self._random.randrange(values.size)] = self._draw((np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0))
        return values.tobytes() + data[len(data) // 4 * 4 :]

"""Mutations of bytes (flips, truncation, splices) and of the values inside a message (other types, extreme numbers)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

__all__ = ["Mutator"]

_TOKENS = (
    b"\xcf" + b"\xff" * 8,  # the largest unsigned integer
    b"\xd3\x80" + b"\x00" * 7,  # the smallest signed one
    b"\xcb\x7f\xf8" + b"\x00" * 6,  # not a number
    b"\xcb\x7f\xf0" + b"\x00" * 6,  # infinity
    b"\xdb\xff\xff\xff\xff",  # a text of 4 GiB
    b"\xc6\xff\xff\xff\xff",  # as many bytes
    b"\xdd\xff\xff\xff\xff",  # an array of 2³² values
    b"\xdf\x7f\xff\xff\xff",  # a map of 2³¹ entries
    b"\x91" * 2000,  # nested 2,000 deep
    b"\xc1",  # never used
    b"\xc7\x04\x2a\x00\x01\x02\x03",  # an extension type
    b"\xc0",
    b"\xc3",
)
_VALUES: tuple[Any, ...] = (
    0, 1, -1, 2, 127, 2**16, 2**31 - 1, 2**31, 2**32, 2**48, 2**53, 2**63 - 1, 2**64 - 1, -(2**31), -(2**63),
    0.0, -0.0, 0.5, 1e-320, 3e38, 1e308, -1e308, float("nan"), float("inf"), float("-inf"),
    "", "x", "d-1", "coordinator", "..", "a/b*", "\x1b[2J\x00\n", "\u202e", "x" * 3000, b"", b"\xff" * 16,
    None, True, False, [], {}, [[]], [0] * 20, {"": None}, [-1, 2**48, 2**48], [0, 2**48, 2**48], [2**48, 0],
    "committed", "round", "|b1", "<f4",
)  # fmt: skip


_INTEGERS = tuple(value for value in _VALUES if type(value) is int)
_FLOATS = tuple(value for value in _VALUES if type(value) is float)
_TEXTS = tuple(value for value in _VALUES if type(value) is str)


class Mutator:
    """Draws mutations from a seeded generator."""

    def __init__(self, generator: random.Random) -> None:
        self._random = generator

    def mutate_bytes(self, data: bytes, other: bytes = b"") -> bytes:
        """A few changes of the bytes themselves; `other` is spliced in."""
        changed = bytearray(data)
        for _ in range(1 + self._random.getrandbits(2) % 3):
            self._change_bytes(changed, other)
        return bytes(changed)

    def _change_bytes(self, data: bytearray, other: bytes) -> None:
        draw, size = self._random, len(data)
        kind = draw.getrandbits(3)
        at = draw.randrange(size) if size else 0
        if kind <= 2 and size:
            for _ in range(1 + draw.getrandbits(2)):
                data[draw.randrange(size)] ^= 1 << draw.getrandbits(3)
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            data[at : at + draw.getrandbits(2)] = _TOKENS[draw.randrange(len(_TOKENS))]
        elif kind == 5 and other:
            start = draw.randrange(len(other))
            data[at : at + draw.getrandbits(4)] = other[start : start + draw.getrandbits(6)]
        elif kind == 6:
            data[at:at] = data[at : at + draw.getrandbits(5)]
        else:
            data += draw.randbytes(1 + draw.getrandbits(5))

    def mutate_values(self, encoded: bytes, *, keep_types: bool = False) -> bytes:
        """A message in MessagePack with one to three of its values changed; it stays well-formed.

        With `keep_types` only the last element of a frame changes, the message, and a number stays a number, so that
        most results are decoded and reach what handles them.
        """
        root = [msgspec.msgpack.decode(encoded)]
        for _ in range(1 + self._random.getrandbits(2) % 3):
            if keep_types:
                self._change_leaf(root[0][-1])
            else:
                self._change_value(root)
        try:
            return msgspec.msgpack.encode(root[0])
        except (OverflowError, TypeError):  # an integer or a key that MessagePack does not have
            return encoded

    def _change_value(self, container: Any) -> None:
        """Walk down to a random value and replace, remove or repeat it."""
        draw = self._random
        while True:
            keys: Sequence[Any] = list(container) if isinstance(container, dict) else range(len(container))
            if not keys:
                return
            key = keys[draw.randrange(len(keys))]
            value = container[key]
            if not isinstance(value, list | dict) or not value or draw.getrandbits(2) == 0:
                break
            container = value
        kind = draw.getrandbits(4)
        if kind == 0 and isinstance(container, dict):
            del container[key]
        elif kind == 1 and isinstance(value, list):
            container[key] = value * draw.choice((2, 30, 400))
        elif kind == 2 and isinstance(value, int | float) and not isinstance(value, bool):
            container[key] = value + draw.choice((-1, 1, 2, 10, 1000))
        elif kind == 3 and isinstance(container, list):
            container.append(value)
        else:
            container[key] = self.extreme_value()

    def _change_leaf(self, container: Any) -> None:
        """Walk down to a number or a text, except the type of the message, and replace it by another."""
        draw = self._random
        while True:
            keys = [key for key in container if key not in ("type", "kind")] if isinstance(container, dict) else None
            places: Sequence[Any] = range(len(container)) if keys is None else keys
            if not places:
                return
            key = places[draw.randrange(len(places))]
            value = container[key]
            if not isinstance(value, list | dict):
                break
            if not value or draw.getrandbits(4) == 0:
                container[key] = value * 3 if isinstance(value, list) else {}
                return
            container = value
        kind = type(value)
        if kind is int:
            near = value + draw.choice((-1, 1, 2, 5))
            container[key] = near if draw.getrandbits(1) else _INTEGERS[draw.randrange(len(_INTEGERS))]
        elif kind is float:
            container[key] = _FLOATS[draw.randrange(len(_FLOATS))]
        elif kind is str:
            container[key] = _TEXTS[draw.randrange(len(_TEXTS))]
        elif kind is bool:
            container[key] = not value

    def extreme_value(self) -> Any:
        value = _VALUES[self._random.randrange(len(_VALUES))]
        return [*value] if isinstance(value, list) else {**value} if isinstance(value, dict) else value

"""Recognises the first message of a connection, so that anything else is closed before Zenoh sees it.

A TLS connection starts with a ClientHello, a plain one with Zenoh's InitSyn after its length. Both are complete within
the first few kilobytes. Nothing is proved by them; they keep out port scans, health probes and random bytes.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["PEEK_BYTES", "FirstBytes", "classify_first_bytes"]

PEEK_BYTES = 5 + (1 << 14)  # the longest TLS record with its header

_HANDSHAKE, _CLIENT_HELLO = 0x16, 0x01
_MIN_HELLO = 4 + 2 + 32 + 1 + 2 + 2  # header, version, random, and the shortest lists
_INIT, _ID_MASK, _ACK = 0x01, 0x1F, 0x20
_MIN_INIT, _MAX_INIT = 4, 512


class FirstBytes(Enum):
    """What the bytes received so far are."""

    INCOMPLETE = "incomplete"
    VALID = "valid"
    INVALID = "invalid"


def classify_first_bytes(data: bytes, tls: bool) -> FirstBytes:
    """Whether a connection starts as one of a device does."""
    return _classify_tls(data) if tls else _classify_init(data)


def _classify_tls(data: bytes) -> FirstBytes:
    if data[:1] not in (b"", b"\x16") or data[1:2] not in (b"", b"\x03") or data[5:6] not in (b"", b"\x01"):
        return FirstBytes.INVALID
    if len(data) < 5:
        return FirstBytes.INCOMPLETE
    length = int.from_bytes(data[3:5], "big")
    if not _MIN_HELLO <= length <= 1 << 14:
        return FirstBytes.INVALID
    if len(data) < 5 + length:
        return FirstBytes.INCOMPLETE
    return FirstBytes.VALID if _is_tls_start(data[5 : 5 + length]) else FirstBytes.INVALID


def _is_tls_start(message: bytes) -> bool:
    """Whether the lengths of the lists in a ClientHello agree with its own; one in several records is not looked at."""
    length = int.from_bytes(message[1:4], "big")
    if length > len(message) - 4:
        return length <= 1 << 16
    body = message[4 : 4 + length]
    at = 34
    for size, shortest, longest in ((1, 0, 32), (2, 2, 1 << 12), (1, 1, 255), (2, 0, 1 << 14)):
        count = int.from_bytes(body[at : at + size], "big")
        if not shortest <= count <= longest or len(body) < at + size + count:
            return False
        at += size + count
    return body[:1] == b"\x03" and at == length


def _classify_init(data: bytes) -> FirstBytes:
    if len(data) >= 2 and not _MIN_INIT <= int.from_bytes(data[:2], "little") <= _MAX_INIT:
        return FirstBytes.INVALID
    if len(data) >= 3 and (data[2] & _ID_MASK != _INIT or data[2] & _ACK):
        return FirstBytes.INVALID
    if len(data) < 2 or len(data) < 2 + int.from_bytes(data[:2], "little"):
        return FirstBytes.INCOMPLETE
    id_length = (data[4] >> 4) + 1
    is_known_role = data[4] & 0x03 != 0x03
    fits = 3 + id_length <= int.from_bytes(data[:2], "little")
    return FirstBytes.VALID if fits and is_known_role else FirstBytes.INVALID

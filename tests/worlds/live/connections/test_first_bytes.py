"""The first message of a device's connection is told apart from everything else."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.faults.stray_connections import _first_bytes
from potluck.worlds.live.connections.first_bytes import FirstBytes, classify_first_bytes

HELLO, INIT = _first_bytes("hello"), _first_bytes("init")


@pytest.mark.parametrize(("message", "tls"), [(HELLO, True), (INIT, False)], ids=["tls", "tcp"])
def test_a_devices_message_is_valid_once_it_is_complete(message: bytes, tls: bool) -> None:
    for length in range(1, len(message)):
        assert classify_first_bytes(message[:length], tls) is FirstBytes.INCOMPLETE
    assert classify_first_bytes(message, tls) is FirstBytes.VALID
    assert classify_first_bytes(message + b"more", tls) is FirstBytes.VALID


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"\0" * 64, b"\xff" * 64, b"\x16\x03\x01\0\0"]
)
def test_other_protocols_are_invalid(garbage: bytes, tls: bool) -> None:
    assert classify_first_bytes(garbage, tls) is FirstBytes.INVALID


def test_the_protocol_must_be_the_listeners() -> None:
    assert classify_first_bytes(INIT, tls=True) is FirstBytes.INVALID
    assert classify_first_bytes(HELLO, tls=False) is FirstBytes.INVALID


def test_a_hello_whose_lengths_disagree_is_invalid() -> None:
    broken = bytearray(HELLO)
    broken[5 + 4 + 34] = 200  # the length of the session id
    assert classify_first_bytes(bytes(broken), tls=True) is FirstBytes.INVALID


def test_random_bytes_hardly_ever_pass() -> None:
    passed = sum(
        classify_first_bytes(os.urandom(64), tls) is FirstBytes.VALID for tls in (True, False) for _ in range(5000)
    )
    assert passed <= 20


@given(st.binary(max_size=200), st.booleans())
def test_anything_is_classified(data: bytes, tls: bool) -> None:
    assert classify_first_bytes(data, tls) in FirstBytes

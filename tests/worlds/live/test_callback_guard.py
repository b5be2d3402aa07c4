"""Handlers of what peers send: an exception becomes a refusal and one log line, whatever raised it."""

from __future__ import annotations

import pytest

from potluck.worlds.live import key_expressions
from potluck.worlds.live.callback_guard import guard_callback
from potluck.worlds.live.key_expressions import Route


def _handle_frame(frame: str) -> None:
    if frame == "full":
        raise MemoryError(frame)
    if frame != "fine":
        raise KeyError(f"{frame}\x1b[2J")


def test_an_exception_becomes_a_refusal_with_an_escaped_reason() -> None:
    refused: list[tuple[str, str]] = []
    handle = guard_callback(_handle_frame, lambda frame, reason: refused.append((frame, reason)))
    for frame in ("fine", "odd"):
        handle(frame)
    assert refused == [("odd", "it cannot be handled (KeyError: 'odd\\x1b[2J')")]


def test_without_a_sender_it_is_counted_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    handle = guard_callback(_handle_frame)
    for _ in range(1000):
        handle("odd")
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "dropped a message (handle frame, 1 so far): it cannot be handled (KeyError: 'odd\\x1b[2J')"
    ]


def test_an_error_of_this_machine_is_not_the_senders_offence(caplog: pytest.LogCaptureFixture) -> None:
    refused: list[str] = []
    guard_callback(_handle_frame, lambda frame, reason: refused.append(reason))("full")
    assert not refused
    assert "MemoryError" in caplog.text


@pytest.mark.parametrize(
    "key",
    ["potluck/**", "potluck/e/from/*/to/coordinator/bulk", "potluck/e/from/pi/to/coordinator/*", "a", ""]
    + [f"potluck/e/from/{name}/to/coordinator/bulk" for name in (".", "..", "%2A", "a%1B", "%E2%80%AE", "")],
)
def test_what_no_node_sends_has_no_route(key: str) -> None:
    assert key_expressions.parse_route(key) is None


def test_a_nodes_message_has_a_route() -> None:
    key = key_expressions.lane_key("e", "Gerät", "coordinator", "bulk")
    assert key_expressions.parse_route(key) == Route("Gerät", "coordinator", "bulk")

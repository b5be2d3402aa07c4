"""The Zenoh key expressions that a run uses: one tree, so that access control can confine a device to its branch.

    potluck/door/{name}                            query: a device asks to join
    potluck/lobby/{name}                           query: a device asks why its join request is not answered
    potluck/standby                                query: a standby copies the run
    potluck/{era}/clock/{name}                     query: a device asks for the coordinator's time
    potluck/{era}/alive/{name}/{incarnation}       liveliness token of one incarnation of a device
    potluck/{era}/from/{sender}/to/{name}/control  small frames, sent with higher priority
    potluck/{era}/from/{sender}/to/{name}/bulk     offers and chunks

An *era* is one incarnation of the coordinator in one run: messages of another era are not received. A name or an era
may be ANY, which matches all.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from potluck.text_escaping import name_refusal

__all__ = [
    "ANY",
    "BULK",
    "CONTROL",
    "Route",
    "admission_key",
    "clock_key",
    "inbox_key",
    "liveliness_key",
    "outbox_key",
    "parse_liveliness_key",
    "parse_route",
    "refusal_reason_key",
    "standby_key",
]

# These two keys never change, nor do the tags in `handshake_messages`: a device of another version must be able to ask
# to join, so that it is refused with a reason.
_JOIN = "potluck/door"
_REFUSAL_REASON = "potluck/lobby"

ANY = "*"
CONTROL = "control"
BULK = "bulk"


class Route(NamedTuple):
    """The sender, receiver and lane of a message."""

    sender: str
    receiver: str
    lane: str


def admission_key(name: str) -> str:
    """Where a device asks to join."""
    return f"{_JOIN}/{_escape_segment(name)}"


def refusal_reason_key(name: str) -> str:
    """Where a device asks why its join request is not answered."""
    return f"{_REFUSAL_REASON}/{_escape_segment(name)}"


def standby_key() -> str:
    """Where a standby asks for a copy of the run."""
    return "potluck/standby"


def clock_key(era: str, name: str) -> str:
    """Where a device asks for the coordinator's time."""
    return f"potluck/{_escape_segment(era)}/clock/{_escape_segment(name)}"


def liveliness_key(era: str, name: str, incarnation: int | str) -> str:
    """The liveliness token of one incarnation of a device."""
    return f"potluck/{_escape_segment(era)}/alive/{_escape_segment(name)}/{incarnation}"


def inbox_key(era: str, name: str, lane: str = ANY) -> str:
    """Everything that is sent to `name`."""
    return lane_key(era, ANY, name, lane)


def outbox_key(era: str, name: str, lane: str = ANY) -> str:
    """Everything that `name` may send."""
    return lane_key(era, name, ANY, lane)


def lane_key(era: str, sender: str, receiver: str, lane: str) -> str:
    return f"potluck/{_escape_segment(era)}/from/{_escape_segment(sender)}/to/{_escape_segment(receiver)}/{lane}"


def parse_route(key: str) -> Route | None:
    """The route of a message, from the key that it was received on; None if no node can have sent it.

    A peer may also send to a pattern of keys, or under something that is no name.
    """
    segments = key.split("/")
    if len(segments) != 7 or segments[6] not in (CONTROL, BULK):
        return None
    sender = _parse_name(segments[3])
    return None if sender is None else Route(sender, unquote(segments[5]), segments[6])


@lru_cache(1024)
def _parse_name(segment: str) -> str | None:
    name = unquote(segment)
    return name if name_refusal(name) is None else None


def parse_liveliness_key(key: str) -> tuple[str, int] | None:
    """The device and incarnation of a liveliness token; None if the key is not one."""
    segments = key.split("/")
    if len(segments) != 5 or not segments[4].isdecimal() or len(segments[4]) > 18:
        return None
    return unquote(segments[3]), int(segments[4])


def _escape_segment(name: str) -> str:
    """A name as one segment of a key: characters that Zenoh interprets are percent-encoded."""
    return name if name == ANY else quote(name, safe="")

"""Where things are said on the Zenoh network: one tree of keys, so that a device can be held to its own branch.

    potluck/door/{name}                            a device asks to be let in (a query; answered with a Welcome)
    potluck/{era}/clock/{name}                     a device asks for the time (a query)
    potluck/{era}/alive/{name}/{life}              a liveliness token for each life of a device
    potluck/{era}/from/{sender}/to/{name}/control  small frames, ahead of all others
    potluck/{era}/from/{sender}/to/{name}/bulk     offers and chunks

An *era* is one life of the coordinator in one run: what was said in another era is not heard in this one. Wherever a
name or an era is asked for, ANY stands for all of them.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, unquote

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
]

ANY = "*"
CONTROL = "control"
BULK = "bulk"


class Route(NamedTuple):
    """Who says it to whom, and on which lane."""

    sender: str
    receiver: str
    lane: str


def admission_key(name: str) -> str:
    """Where a device asks to be let in."""
    return f"potluck/door/{_escape_segment(name)}"


def clock_key(era: str, name: str) -> str:
    """Where a device asks for the time."""
    return f"potluck/{_escape_segment(era)}/clock/{_escape_segment(name)}"


def liveliness_key(era: str, name: str, life: int | str) -> str:
    """The token that is there as long as this life of the device."""
    return f"potluck/{_escape_segment(era)}/alive/{_escape_segment(name)}/{life}"


def inbox_key(era: str, name: str, lane: str = ANY) -> str:
    """All that is said to `name`."""
    return lane_key(era, ANY, name, lane)


def outbox_key(era: str, name: str, lane: str = ANY) -> str:
    """All that `name` may say."""
    return lane_key(era, name, ANY, lane)


def lane_key(era: str, sender: str, receiver: str, lane: str) -> str:
    return f"potluck/{_escape_segment(era)}/from/{_escape_segment(sender)}/to/{_escape_segment(receiver)}/{lane}"


def parse_route(key: str) -> Route:
    """Who sent to whom, read from the key that something came in by."""
    steps = key.split("/")
    assert len(steps) == 7, key
    return Route(unquote(steps[3]), unquote(steps[5]), steps[6])


def parse_liveliness_key(key: str) -> tuple[str, int] | None:
    """The device and the life that a token stands for; None if it is not one of ours."""
    steps = key.split("/")
    if len(steps) != 5 or not steps[4].isdecimal() or len(steps[4]) > 18:
        return None
    return unquote(steps[3]), int(steps[4])


def _escape_segment(name: str) -> str:
    """One step of a key; signs that mean something to Zenoh are written as %XX."""
    return name if name == ANY else quote(name, safe="")

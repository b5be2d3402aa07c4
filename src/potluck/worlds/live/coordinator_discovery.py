"""Finds a coordinator that runs with `--discover` on the local network, by multicast (which many networks block)."""

from __future__ import annotations

import logging
import time

import zenoh

from potluck.errors import UserError

__all__ = ["find_coordinator"]

_SCOUT_S = 2.0  # how long to wait for replies, each time

_log = logging.getLogger("potluck")


def find_coordinator(protocol: str, timeout_s: float | None) -> str:
    """The address of the only coordinator that speaks `protocol` (tcp or tls); UserError if there are several.

    Searches for `timeout_s`, or for ever if it is None.
    """
    until, announced = time.monotonic() + (timeout_s or 0.0), False
    while not (addresses := _scout_coordinators(protocol)):
        if timeout_s is not None and time.monotonic() > until:
            raise UserError(
                f"no coordinator found within {timeout_s:g} s: is `potluck serve --discover` running on this network?"
                " Many networks block multicast; pass the coordinator's address instead"
            )
        if not announced:
            _log.info("looking for a coordinator; is `potluck serve --discover` running on this network?")
            announced = True
    if len(addresses) > 1:
        raise UserError(f"several coordinators found; join one by its address: {', '.join(sorted(addresses))}")
    return addresses.pop()


def _scout_coordinators(protocol: str) -> set[str]:
    """One address of each coordinator that replies."""
    config = zenoh.Config()
    config.insert_json5("scouting/multicast/enabled", "true")
    addresses: dict[str, str] = {}
    scouting = zenoh.scout(what="router", config=config)
    time.sleep(_SCOUT_S)
    while (reply := scouting.try_recv()) is not None:
        locators = sorted(
            (locator for locator in reply.locators if locator.startswith(f"{protocol}/")), key=_preference
        )
        if locators:
            addresses[str(reply.zid)] = locators[0].partition("?")[0]
    scouting.stop()  # type: ignore[no-untyped-call]
    return set(addresses.values())


def _preference(locator: str) -> tuple[bool, bool]:
    """Loopback comes last: it is another host here. IPv4 comes first: a link-local IPv6 address is of another link."""
    return "/127." in locator or "/[::1]" in locator, "[" in locator

"""Find the coordinator on the local network if it wants to be found: by multicast, which not all networks carry."""

from __future__ import annotations

import logging
import time

import zenoh

from potluck.errors import UserError

__all__ = ["find_coordinator"]

_LOOK_S = 2.0  # for answers, each time

_log = logging.getLogger("potluck")


def find_coordinator(protocol: str, patience_s: float | None) -> str:
    """The address of the only coordinator that speaks tcp or tls; looks for it as long as our patience lasts."""
    until, told = time.monotonic() + (patience_s or 0.0), False
    while not (found := _scout_coordinators(protocol)):
        if patience_s is not None and time.monotonic() > until:
            raise UserError(
                f"no coordinator was found for {patience_s:g} s: is `potluck serve --discover` running on this network?"
                " Many networks carry no multicast; an address always works"
            )
        if not told:
            _log.info("looking for a coordinator; is `potluck serve --discover` running on this network?")
            told = True
    if len(found) > 1:
        raise UserError(f"there are several coordinators; join one by its address: {', '.join(sorted(found))}")
    return found.pop()


def _scout_coordinators(protocol: str) -> set[str]:
    """One address of each coordinator that answers."""
    config = zenoh.Config()
    config.insert_json5("scouting/multicast/enabled", "true")
    found: dict[str, str] = {}
    scouting = zenoh.scout(what="router", config=config)
    time.sleep(_LOOK_S)
    while (hello := scouting.try_recv()) is not None:
        fit = sorted((locator for locator in hello.locators if locator.startswith(f"{protocol}/")), key=_is_ipv6)
        if fit:
            found[str(hello.zid)] = fit[0].partition("?")[0]
    scouting.stop()  # type: ignore[no-untyped-call]
    return set(found.values())


def _is_ipv6(locator: str) -> bool:
    """IPv4 comes first: an IPv6 address of one link means nothing on another."""
    return "[" in locator

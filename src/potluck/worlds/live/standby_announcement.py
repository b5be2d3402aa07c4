"""Tells a leader's devices where its standbys listen, whenever that changes; a device that joins is told at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from potluck.worlds.live.control_messages import Coordinators

__all__ = ["announce_coordinators"]

_INTERVAL_S = 0.05


async def announce_coordinators(
    current_addresses: Callable[[], list[str]], tell_devices: Callable[[Coordinators], None]
) -> None:
    """Compare regularly, for ever: a standby may take over as soon as the devices can know its address."""
    announced = current_addresses()
    while True:
        await asyncio.sleep(_INTERVAL_S)
        addresses = current_addresses()
        if addresses != announced:
            announced = addresses
            tell_devices(Coordinators(addresses))

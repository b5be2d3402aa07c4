"""The fleet file: devices, links, traces of speed and availability, and fault scripts.

Pure arithmetic on seeds and time: a world applies the changes that this package computes.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Annotated

from potluck.errors import SettingError
from potluck.fleet.faults import Fault, FleetChange
from potluck.fleet.fleet_devices import LINKS, PRESETS, Device, DeviceGroup, Link, expand_group
from potluck.fleet.fleet_events import device_speed, fleet_changes
from potluck.fleet.traces import ConstantTrace, Trace
from potluck.settings import Settings, doc
from potluck.units import Seconds

__all__ = [
    "LINKS",
    "PRESETS",
    "ConstantTrace",
    "CoordinatorMachine",
    "Device",
    "DeviceGroup",
    "Fault",
    "Fleet",
    "FleetChange",
    "Link",
    "Trace",
    "device_speed",
    "fleet_changes",
]


class CoordinatorMachine(Settings, frozen=True, kw_only=True):
    """`[coordinator]`: the machine that holds the model."""

    link: Annotated[
        str | Link, doc("The coordinator's network link, by name or as a table; all transfers share it.")
    ] = "server"

    def __post_init__(self) -> None:
        if isinstance(self.link, str) and self.link not in LINKS:
            raise ValueError(f"link {self.link!r} is not known; choose from {', '.join(LINKS)} or give a table")

    @property
    def resolved_link(self) -> Link:
        return LINKS[self.link] if isinstance(self.link, str) else self.link


class Fleet(Settings, frozen=True, kw_only=True, dict=True):
    """`fleet.toml`, or `[fleet]` in a job: devices, their links, and what goes wrong."""

    devices: Annotated[tuple[DeviceGroup, ...], doc("Groups of identical devices.")]
    coordinator: Annotated[CoordinatorMachine, doc("The machine that holds the model.")] = CoordinatorMachine()
    faults: Annotated[tuple[Fault, ...], doc("Rules that break devices and links.")] = ()
    notice: Annotated[Seconds, doc("Time until a dropped connection is noticed.")] = Seconds(0.05)
    lease: Annotated[Seconds, doc("Time without a heartbeat after which a device is considered lost.")] = Seconds(5)

    def __post_init__(self) -> None:
        if not self.devices:
            raise ValueError("`devices` is empty; a fleet needs at least one device")
        duplicates = [name for name, count in Counter(device.name for device in self.members).items() if count > 1]
        if duplicates:
            raise ValueError(f"device name {duplicates[0]!r} is used twice; give each group its own `name`")
        for index, fault in enumerate(self.faults):
            if not any(fault.matches_device(device.name) for device in self.members):
                raise SettingError(f"faults[{index}].device", f"no device is called {fault.device!r}")

    @cached_property
    def members(self) -> tuple[Device, ...]:
        """Every device, in the file's order."""
        return tuple(device for group in self.devices for device in expand_group(group))

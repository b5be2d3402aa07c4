"""Devices and links as a fleet file declares them, and presets for common boards and networks."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from potluck.fleet.compute_profile import ComputeProfile
from potluck.fleet.traces import ConstantTrace, Trace
from potluck.settings import Settings, doc
from potluck.text_escaping import name_refusal
from potluck.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds

__all__ = ["COORDINATOR", "LINKS", "PRESETS", "Device", "DeviceGroup", "DevicePreset", "Link"]

COORDINATOR = "coordinator"  # the node that leads a run; no device may have this name


class Link(Settings, frozen=True, kw_only=True):
    """A device's own connection to the network."""

    up: Annotated[BytesPerSecond, doc("Bandwidth from the device to the network.")] = BytesPerSecond.parse("50 Mbit/s")
    down: Annotated[BytesPerSecond, doc("Bandwidth from the network to the device.")] = BytesPerSecond.parse(
        "50 Mbit/s"
    )
    latency: Annotated[Seconds, doc("One-way delay of a message; does not occupy the link.")] = Seconds(0.005)
    overhead: Annotated[Seconds, doc("Start-up time of each bulk transfer; occupies the link.")] = Seconds(0.001)
    loss: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0), doc("Fraction of messages that are lost.")] = 0.0
    quality: Annotated[Trace, doc("Fraction of `up` and `down` that is available over time.")] = ConstantTrace()

    def __post_init__(self) -> None:
        if not (self.up > 0 and self.down > 0):
            raise ValueError("`up` and `down` must be above 0")


LINKS = {
    "wifi": Link(),
    "lan": Link(
        up=BytesPerSecond(125e6), down=BytesPerSecond(125e6), latency=Seconds(0.0005), overhead=Seconds(0.0002)
    ),
    "lte": Link(
        up=BytesPerSecond(1.25e6), down=BytesPerSecond(3.75e6), latency=Seconds(0.035), overhead=Seconds(0.002)
    ),
    "wan": Link(up=BytesPerSecond(12.5e6), down=BytesPerSecond(12.5e6), latency=Seconds(0.02), overhead=Seconds(0.001)),
    "server": Link(
        up=BytesPerSecond(125e6), down=BytesPerSecond(125e6), latency=Seconds(0.0005), overhead=Seconds(0.0)
    ),
}


class DevicePreset(Settings, frozen=True, kw_only=True):
    """A kind of board: its speed in training, memory and power, with the source of the figures."""

    peak: Annotated[FlopsPerSecond, doc("Peak speed by the data sheet.")]
    peak_fraction: Annotated[float, doc("Fraction of the peak that training with PyTorch is assumed to reach.")]
    memory: Annotated[Bytes, doc("Main memory.")]
    watts: Annotated[float, doc("Power while busy, in watts.")]
    link: Annotated[str, doc("Name of the link that boards of this kind usually have.")]
    source: Annotated[str, doc("Where the figures come from.")]

    @property
    def flops(self) -> FlopsPerSecond:
        return FlopsPerSecond(self.peak * self.peak_fraction)


def _make_preset(peak_gflops: float, fraction: float, gib: float, watts: float, link: str, source: str) -> DevicePreset:
    peak = FlopsPerSecond(peak_gflops * 1e9)
    return DevicePreset(
        peak=peak, peak_fraction=fraction, memory=Bytes(gib * 2**30), watts=watts, link=link, source=source
    )


# Peaks are cores × clock × fp32 operations per cycle from the manufacturers' data sheets. The fraction that training
# reaches is an assumption, the same for all boards of a kind (0.25 on CPUs, 0.35 on GPUs): measure your device with
# `potluck profile` and name the file as `profile` where it matters.
PRESETS = {
    "pi4": _make_preset(
        48.0, 0.25, 4, 6.4, "wifi", "BCM2711, 4 Cortex-A72 at 1.5 GHz, 8 FLOP/cycle; Raspberry Pi 4 product brief"
    ),
    "pi5": _make_preset(
        153.6, 0.25, 8, 8.8, "wifi", "BCM2712, 4 Cortex-A76 at 2.4 GHz, 16 FLOP/cycle; Raspberry Pi 5 product brief"
    ),
    "jetson-nano": _make_preset(
        235.8, 0.35, 4, 10.0, "lan", "128 Maxwell cores at 921 MHz, 2 FLOP/cycle; Jetson Nano data sheet"
    ),
    "jetson-orin-nano": _make_preset(
        1280.0, 0.35, 8, 15.0, "lan", "1024 Ampere cores at 625 MHz, 2 FLOP/cycle; Orin Nano 8 GB data sheet"
    ),
    "laptop": _make_preset(
        307.2, 0.25, 16, 28.0, "wifi", "4 cores at 2.4 GHz, 32 FLOP/cycle (two AVX2 FMA units); Core i5-1135G7 class"
    ),
    "desktop": _make_preset(
        972.8, 0.25, 32, 105.0, "lan", "8 cores at 3.8 GHz, 32 FLOP/cycle (two AVX2 FMA units); Ryzen 7 5800X class"
    ),
    "phone": _make_preset(
        153.6, 0.25, 8, 5.0, "lte", "4 Cortex-A78 class cores at 2.4 GHz, 16 FLOP/cycle; Arm Cortex-A78 manual"
    ),
}


class DeviceGroup(Settings, frozen=True, kw_only=True):
    """`[[devices]]`: identical devices, named `name-0`, `name-1`, … (a single one just `name`)."""

    name: Annotated[
        str, doc("Name of the device or, with `count`, the prefix of their names; by default the preset's.")
    ] = ""
    preset: Annotated[str, doc("Kind of board that supplies speed, memory and link; `potluck fleets` lists them.")] = ""
    count: Annotated[int, msgspec.Meta(ge=1, le=1_000_000), doc("Number of devices in this group.")] = 1
    flops: Annotated[
        FlopsPerSecond | None, doc("Training speed; overrides the preset's. Required without a preset or profile.")
    ] = None
    profile: Annotated[
        ComputeProfile | None,
        doc("File that `potluck profile` wrote: measured times of each layer, which replace `flops`."),
    ] = None
    memory: Annotated[Bytes | None, doc("Main memory; overrides the preset's, and is 4 GiB without a preset.")] = None
    link: Annotated[
        str | Link | None, doc("Network link by name or as a table; by default the preset's, or `wifi`.")
    ] = None
    speed: Annotated[Trace, doc("Fraction of the training speed that is available over time.")] = ConstantTrace()
    available: Annotated[Trace, doc("Presence over time; the device is absent while the level is below one half.")] = (
        ConstantTrace()
    )

    def __post_init__(self) -> None:
        if self.preset and self.preset not in PRESETS:
            raise ValueError(f"preset {self.preset!r} is not known; choose from {', '.join(PRESETS)}")
        if not self.preset and self.flops is None and self.profile is None:
            raise ValueError(f"give a `preset` ({', '.join(PRESETS)}), a `profile`, or `flops`, such as '2 GFLOP/s'")
        if self.profile is not None and self.flops is not None:
            raise ValueError("give `flops` or a `profile`, not both")
        if not self.preset and not self.name:
            raise ValueError("give the device a `name` or a `preset`")
        if self.flops is not None and not 0 < self.flops < math.inf:
            raise ValueError(f"`flops` must be above 0 and finite, got {self.flops}")
        if isinstance(self.link, str) and self.link not in LINKS:
            raise ValueError(f"link {self.link!r} is not known; choose from {', '.join(LINKS)} or give a table")
        if self.name and (reason := name_refusal(self.name)) is not None:
            raise ValueError(reason)
        if self.name == COORDINATOR:
            raise ValueError(f"name {COORDINATOR!r} is reserved for the coordinator; choose another")


class Device(msgspec.Struct, frozen=True):
    """One device of the fleet with all settings resolved."""

    name: str
    flops: float
    memory: float
    watts: float
    link: Link
    speed: Trace
    available: Trace
    profile: ComputeProfile | None = None


def expand_group(group: DeviceGroup) -> list[Device]:
    """The devices that a `[[devices]]` table describes."""
    board = PRESETS.get(group.preset)
    flops = group.flops if group.flops is not None else (board.flops if board else 0.0)
    if group.profile is not None:
        flops = FlopsPerSecond(group.profile.flops)
    memory = group.memory if group.memory is not None else (board.memory if board else Bytes(4 * 2**30))
    link = group.link if group.link is not None else (board.link if board else "wifi")
    link = LINKS[link] if isinstance(link, str) else link
    name = group.name or group.preset
    names = [name] if group.count == 1 else [f"{name}-{index}" for index in range(group.count)]
    watts = board.watts if board else 10.0
    figures = float(flops), float(memory), watts, link, group.speed, group.available, group.profile
    return [Device(name, *figures) for name in names]

"""Who holds which groups, where nobody has said so: dealt round in turn, so that no group is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from potluck.errors import SettingError

__all__ = ["assign_groups", "assign_round_robin"]

Held = tuple[int, ...]


def assign_round_robin(devices: int, groups: int) -> list[Held]:
    """One group for each device where devices are many, several for each where groups are."""
    if devices >= groups:
        return [(device % groups,) for device in range(devices)]
    return [tuple(range(device, groups, devices)) for device in range(devices)]


def assign_groups(devices: Sequence[str], groups: int, said: Mapping[str, Sequence[int]], path: str) -> dict[str, Held]:
    """The groups of each device: what was said of it, else what it is dealt; SettingError names what cannot be."""
    for name, wanted in said.items():
        where = f"{path}.{name}"
        if name not in devices:
            raise SettingError(where, f"no device of the fleet is called {name!r}")
        if not wanted:
            raise SettingError(where, "give the device at least one group")
        strange = [group for group in wanted if not 0 <= group < groups]
        if strange:
            raise SettingError(where, f"there is no group {strange[0]}; they are counted from 0 to {groups - 1}")
    others = [name for name in devices if name not in said]
    shares = dict(zip(others, assign_round_robin(len(others), groups), strict=True)) if others else {}
    return {name: tuple(sorted(set(said[name]))) if name in said else shares[name] for name in devices}

"""Who is here before a live run begins, who is missing, and how they join."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from potluck.cli.console import plain_table
from potluck.cli.number_format import format_flops

if TYPE_CHECKING:
    from rich.table import Table

    from potluck.fleet import Fleet

__all__ = ["JoiningDevices"]

_MOST = 20


class JoiningDevices(NamedTuple):
    """The fleet, and who of it is here."""

    fleet: Fleet
    joined: Mapping[str, int]
    join_commands: Mapping[str, str] = {}  # the command by which each device joins, without its token

    def missing_names(self) -> list[str]:
        return sorted(device.name for device in self.fleet.members if device.name not in self.joined)

    def status_line(self) -> str:
        missing, count = self.missing_names(), len(self.fleet.members)
        waiting = f"; waiting for {', '.join(missing)}" if missing else "; all are here"
        return f"{count - len(missing)} of {count} devices{waiting}"

    def status_table(self) -> Table:
        """A row for each device, the missing first."""
        drawn = plain_table("device", "speed", "", *(["to join, with the token above"] if self.join_commands else []))
        for column in drawn.columns[2:]:
            column.justify = "left"
        ranked = sorted(self.fleet.members, key=lambda device: (device.name in self.joined, device.name))
        for device in ranked[:_MOST]:
            here = device.name in self.joined
            state = "[green]here[/]" if here else "[red]missing[/]"
            how = [self.join_commands.get(device.name, "")] if self.join_commands and not here else []
            drawn.add_row(device.name, format_flops(device.flops), state, *how)
        if len(ranked) > _MOST:
            drawn.add_row(f"… {len(ranked) - _MOST} more")
        return drawn

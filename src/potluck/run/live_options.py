"""How a live run is served. Kept in its folder as options.json, so that it is resumed as it was started.

A standby keeps options of its own for what belongs to its machine; the rest is as the leader serves the run.

The file is readable by its owner only: it names the folder of the certificates, and later options may be secrets.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from potluck.atomic_file import read_decoded, write_atomically
from potluck.errors import UserError
from potluck.worlds.live.replica_messages import LeaderOptions

if TYPE_CHECKING:
    from potluck.run.live_run import LiveObserver

__all__ = ["OPTIONS_FILE", "KeptOptions", "LabOptions", "ResumeOptions", "ServeOptions", "load_options", "save_options"]

OPTIONS_FILE = "options.json"


@dataclass(frozen=True)
class ServeOptions:
    """How devices reach the coordinator, how long it waits for them, and with which tokens they join."""

    listen: str = ""  # HOST[:PORT]; by default 127.0.0.1, with certificates or `insecure` 0.0.0.0
    certs: Path | None = None  # the folder made by `potluck certs init`: mutual TLS
    insecure: bool = False  # listen beyond this machine without TLS
    wait_s: float = 600.0  # for the fleet, before the run starts without the missing devices
    discover: bool = False  # let devices of the local network find the coordinator by multicast
    shared_memory: bool = False  # between processes of one machine
    token_hours: float = 24.0  # until a join token expires
    token_each: bool = False  # a separate token for each device, valid for no other
    etcd: str = ""  # addresses of etcd, which elects the leader; without it an operator does
    leader_lease_s: float = 5.0  # with etcd: until a leader that it does not hear of has lost the run
    standby_wait_s: float = 5.0  # how long a commit waits for a standby that is in sync; 0: not at all

    def of_the_run(self) -> LeaderOptions:
        """Those that a standby takes over; the others belong to the machine or to its way to etcd."""
        return LeaderOptions(
            wait_s=self.wait_s,
            token_hours=self.token_hours,
            token_each=self.token_each,
            standby_wait_s=self.standby_wait_s,
        )

    def as_led_by(self, leader: LeaderOptions) -> ServeOptions:
        """These options of a standby, with those of its leader that it takes over."""
        return replace(self, **msgspec.structs.asdict(leader))


@dataclass(frozen=True)
class LabOptions:
    """What a lab acts out."""

    wait_s: float = 120.0  # for the device processes, before the run starts without the missing ones
    emulate_fleet: bool = True  # links and speeds as the fleet says; else as fast as this machine is
    play_faults: bool = True  # crashes and restarts as the fleet's fault script says


@dataclass(frozen=True)
class ResumeOptions:
    """What to change about how a live run was served; None leaves an option as the run was started with."""

    listen: str | None = None
    certs: Path | None = None
    insecure: bool | None = None
    wait_s: float | None = None
    discover: bool | None = None
    shared_memory: bool | None = None
    token_hours: float | None = None
    token_each: bool | None = None
    etcd: str | None = None
    leader_lease_s: float | None = None
    standby_wait_s: float | None = None
    observer: LiveObserver | None = None  # follows the resumed run

    def changes(self) -> dict[str, Any]:
        """The options that are not left as they were."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "observer"}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class KeptOptions:
    """How a live run was started: with `serve` or with `lab`, and where its data was looked for."""

    serve: ServeOptions | None = None
    lab: LabOptions | None = None
    data: Path | None = None

    def apply_changes(self, changes: dict[str, Any], data: Path | None) -> KeptOptions:
        """These options with some of them changed; a lab refuses those that only `serve` has."""
        data = data or self.data
        if self.serve is not None:
            return KeptOptions(serve=replace(self.serve, **changes), data=data)
        assert self.lab is not None
        for name in changes:
            if name not in {field.name for field in fields(self.lab)}:
                raise UserError(f"{name}: this run is a lab, whose devices are processes of this machine; leave it out")
        return KeptOptions(lab=replace(self.lab, **changes), data=data)


def save_options(folder: Path, options: KeptOptions) -> None:
    """Keep how a run was started; paths are absolute, so that it can be resumed from any folder."""
    serve, data = options.serve, options.data
    if serve is not None and serve.certs is not None:
        serve = replace(serve, certs=serve.certs.absolute())
    kept = replace(options, serve=serve, data=None if data is None else data.absolute())
    write_atomically(folder / OPTIONS_FILE, msgspec.json.encode(kept, enc_hook=str), private=True)


def load_options(folder: Path) -> KeptOptions | None:
    """How a run was started; None for one that was started before this was kept."""
    decoder = msgspec.json.Decoder(KeptOptions, dec_hook=lambda kind, value: kind(value))
    return read_decoded(folder / OPTIONS_FILE, decoder.decode)

"""What a coordinator is given: the run that it leads, and who may join it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import zenoh

from potluck.fleet import Fleet
from potluck.journal import Journal
from potluck.worlds.live.admission_server import AdmissionCheck
from potluck.worlds.live.handshake_messages import JoinRequest, RunInfo
from potluck.worlds.live.refusal_log import RefusalReporter

__all__ = ["AdmissionHooks", "CoordinatedRun", "MembersChanged"]

MembersChanged = Callable[[Mapping[str, int]], None]  # device → incarnation of all that are ready


@dataclass(frozen=True, kw_only=True)
class CoordinatedRun:
    """The run that a coordinator leads."""

    info: RunInfo
    seed: int
    journal: Journal
    start_s: float = 0.0  # where the run's clock starts; above 0 in a resumed run
    fleet: Fleet | None = None  # emulate the links and faults of this fleet
    coordinators: Callable[[], list[str]] = list  # where the leader and its standbys listen now


@dataclass(frozen=True, kw_only=True)
class AdmissionHooks:
    """Who may join a run, and what to call when devices come and go."""

    check: AdmissionCheck
    on_admitted: Callable[[JoinRequest], None] = lambda request: None
    on_members_changed: MembersChanged = lambda members: None
    # Called in a thread once the session is open; may declare more on it and report the refusals that it causes.
    on_session_open: Callable[[zenoh.Session, RefusalReporter], None] = lambda session, report_refusal: None

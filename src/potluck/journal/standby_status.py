"""How far a standby is behind its leader, as a live run's folder says it; `potluck status` and the page show it."""

from __future__ import annotations

from pathlib import Path

import msgspec

__all__ = ["FollowStatus", "StandbyStatus", "read_standby_sentences"]


class StandbyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A standby, as its leader sees it."""

    address: str
    in_sync: bool  # it has every checkpoint and may take over
    lag_checkpoints: int
    silent_s: float  # since it last asked

    def sentence(self) -> str:
        state = "in sync" if self.in_sync else f"{self.lag_checkpoints:,} checkpoints behind, and may not take over"
        return f"standby {self.address}: {state}{_silence(self.silent_s)}"


class FollowStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A leader, as its standby sees it."""

    leader: str  # its address; empty until it has answered
    term: int
    lag_checkpoints: int = 0
    lag_bytes: int = 0  # of the journal
    silent_s: float = 0.0  # since the leader last answered

    def sentence(self) -> str:
        if not self.leader:
            return f"has not reached a leader since it was started; its copy is of term {self.term}"
        lag = f"{self.lag_checkpoints:,} checkpoints and {self.lag_bytes:,} bytes of the journal behind"
        return f"follows {self.leader} (term {self.term}), {lag}{_silence(self.silent_s)}"


class _StatusFile(msgspec.Struct):
    standbys: list[StandbyStatus] = []
    follows: FollowStatus | None = None


def read_standby_sentences(run: Path) -> list[str]:
    """What a run's status file says of standbys; none if it has no such file."""
    try:
        status = msgspec.json.decode((run / "live.json").read_bytes(), type=_StatusFile)
    except (OSError, msgspec.DecodeError):
        return []
    own = [] if status.follows is None else [f"this standby {status.follows.sentence()}"]
    return own + [standby.sentence() for standby in status.standbys]


def _silence(seconds: float) -> str:
    return f", silent for {seconds:.0f} s" if seconds >= 3.0 else ""

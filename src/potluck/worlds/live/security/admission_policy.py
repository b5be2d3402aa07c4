"""Decides whether a device may join a run. Every check is called from here; a refusal carries its reason."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import msgspec

from potluck.worlds.live.security import access_control, certificate_register, join_tokens
from potluck.worlds.live.security.admitted_devices import AdmittedDevices

__all__ = ["AdmissionPolicy"]


class AdmissionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Who may join one run: fixed when the run starts, except that revocations are looked up for each request."""

    digest: str  # of the job
    secret: bytes
    common_names: dict[str, str]  # device → common name of its certificate
    admitted_devices: AdmittedDevices
    authority_folder: Path | None = None  # None on loopback, where there are no certificates

    @classmethod
    def for_run(cls, run: Path, digest: str, names: Iterable[str], authority_folder: Path | None) -> Self:
        """The policy of the run in folder `run`, for the devices of its fleet."""
        common_names = (
            certificate_register.admitted_common_names(authority_folder, names)
            if authority_folder is not None
            else {name: name for name in names}
        )
        return cls(
            digest=digest,
            secret=join_tokens.load_run_secret(run),
            common_names=common_names,
            admitted_devices=AdmittedDevices(run, certified=authority_folder is not None),
            authority_folder=authority_folder,
        )

    def issue_token(self, expires_at: datetime, names: Iterable[str] | None = None) -> str:
        """Issue a join token for this run."""
        return join_tokens.issue_token(self.secret, self.digest, expires_at, names)

    def access_control(self) -> dict[str, Any] | None:
        """Zenoh's access control for the coordinator; None without certificates to tell devices apart."""
        return access_control.coordinator_access(self.common_names) if self.authority_folder is not None else None

    def refusal_reason(self, name: str, token: str, now: datetime, process_secret: str = "") -> str | None:
        """Why this device may not join, or None if it may; one that joined before may use an expired token."""
        rejoining = self.admitted_devices.was_admitted(name, process_secret)
        return self.permanent_refusal(name) or join_tokens.check_token(
            token, self.secret, self.digest, name, now, rejoining=rejoining
        )

    def permanent_refusal(self, name: str) -> str | None:
        """Why this device may not join whatever its token; None if it may."""
        if name not in self.common_names:
            fleet = _abbreviated_names(self.common_names)
            return f"{name} is not in this run's fleet ({fleet}); add it there, or join under a name of the fleet"
        return (
            certificate_register.revocation_reason(self.authority_folder, name, self.common_names)
            if self.authority_folder is not None
            else None
        )


def _abbreviated_names(names: Iterable[str], most: int = 5) -> str:
    listed = sorted(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")

"""The gate of one run: all that decides whether a device comes in, asked in one place, answered with a reason."""

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
    """What was settled when the run began; revocations are looked up whenever someone asks."""

    digest: str  # of the job
    secret: bytes
    common_names: dict[str, str]  # device → common name of its certificate
    admitted_devices: AdmittedDevices
    authority_folder: Path | None = None  # the authority's folder; None on loopback, where there are no certificates

    @classmethod
    def for_run(cls, run: Path, digest: str, names: Iterable[str], certs: Path | None) -> Self:
        """The gate of the run in folder `run`, for the devices of its fleet."""
        common_names = (
            certificate_register.admitted_common_names(certs, names)
            if certs is not None
            else {name: name for name in names}
        )
        return cls(
            digest=digest,
            secret=join_tokens.load_run_secret(run),
            common_names=common_names,
            admitted_devices=AdmittedDevices(run, certified=certs is not None),
            authority_folder=certs,
        )

    def issue_token(self, expires_at: datetime, names: Iterable[str] | None = None) -> str:
        """An invitation to this run."""
        return join_tokens.issue_token(self.secret, self.digest, expires_at, names)

    def access_control(self) -> dict[str, Any] | None:
        """Zenoh's access control for the coordinator; None where devices cannot be told apart by certificates."""
        return access_control.coordinator_access(self.common_names) if self.authority_folder is not None else None

    def refusal_reason(self, name: str, token: str, now: datetime, body: str = "") -> str | None:
        """Why this device is not let in, or None where it is; who was let in before may come with an expired token."""
        again = self.admitted_devices.was_admitted(name, body)
        return self.permanent_refusal(name) or join_tokens.check_token(
            token, self.secret, self.digest, name, now, again=again
        )

    def permanent_refusal(self, name: str) -> str | None:
        """Why this device could not come in with any token; what the lobby answers."""
        if name not in self.common_names:
            fleet = _abbreviated_names(self.common_names)
            return f"{name} is not in this run's fleet ({fleet}); add it there, or join under its own name"
        return (
            certificate_register.revocation_reason(self.authority_folder, name, self.common_names)
            if self.authority_folder is not None
            else None
        )


def _abbreviated_names(names: Iterable[str], most: int = 5) -> str:
    listed = sorted(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")

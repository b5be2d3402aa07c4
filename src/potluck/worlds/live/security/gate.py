"""The gate of one run: all that decides whether a device comes in, asked in one place, answered with a reason."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import msgspec

from potluck.worlds.live.security import access, register, tokens
from potluck.worlds.live.security.admissions import Admissions

__all__ = ["Gate"]


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """What was settled when the run began; revocations are looked up whenever someone asks."""

    digest: str  # of the job
    secret: bytes
    admitted: dict[str, str]  # device → common name of its certificate
    let_in: Admissions
    certs: Path | None = None  # the authority's folder; None on loopback, where there are no certificates

    @classmethod
    def open(cls, run: Path, digest: str, names: Iterable[str], certs: Path | None) -> Self:
        """The gate of the run in folder `run`, for the devices of its fleet."""
        admitted = register.admitted(certs, names) if certs is not None else {name: name for name in names}
        let_in = Admissions(run, certified=certs is not None)
        return cls(digest=digest, secret=tokens.secret(run), admitted=admitted, let_in=let_in, certs=certs)

    def token(self, expires_at: datetime, names: Iterable[str] | None = None) -> str:
        """An invitation to this run."""
        return tokens.issue(self.secret, self.digest, expires_at, names)

    def access(self) -> dict[str, Any] | None:
        """Zenoh's access control for the coordinator; None where devices cannot be told apart by certificates."""
        return access.config(self.admitted) if self.certs is not None else None

    def reason(self, name: str, token: str, now: datetime, body: str = "") -> str | None:
        """Why this device is not let in, or None where it is; who was let in before may come with an expired token."""
        again = self.let_in.knows(name, body)
        return self.stays_out(name) or tokens.check(token, self.secret, self.digest, name, now, again=again)

    def stays_out(self, name: str) -> str | None:
        """Why this device could not come in with any token; what the lobby answers."""
        if name not in self.admitted:
            return (
                f"{name} is not in this run's fleet ({_some(self.admitted)}); add it there, or join under its own name"
            )
        return register.withdrawn(self.certs, name, self.admitted) if self.certs is not None else None


def _some(names: Iterable[str], most: int = 5) -> str:
    listed = sorted(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")

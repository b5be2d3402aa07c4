"""Decides whether a device may join a run. It runs every check; a refusal carries its reason."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import msgspec

from potluck.atomic_file import read_decoded, write_atomically
from potluck.worlds.live.security import access_control, certificate_register, join_tokens

__all__ = ["ADMITTED_FILE", "AdmissionPolicy", "AdmittedDevices", "read_admitted"]

ADMITTED_FILE = "admitted.json"
_log = logging.getLogger("potluck")


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


class AdmittedDevices:
    """The devices that joined one run, each with a fingerprint of the secret of its latest process.

    An expired token still admits the device that joined with it. With certificates, a device's name is authenticated
    and sufficient; without them, a device is recognised by the secret that its process generated and sends only to the
    coordinator (`JoinRequest.body`). Stored in the run's folder, so that it survives a restart of the coordinator.
    """

    def __init__(self, run: Path, certified: bool) -> None:
        self._path = run / ADMITTED_FILE
        self._certified = certified
        self._fingerprints = read_admitted(run) or {}
        self._is_saved = True

    def was_admitted(self, name: str, process_secret: str) -> bool:
        """Whether this device joined before."""
        return (
            name in self._fingerprints
            if self._certified
            else bool(process_secret) and self._fingerprints.get(name) == _secret_fingerprint(process_secret)
        )

    def record_admission(self, name: str, process_secret: str) -> None:
        """Remember that this device joins now."""
        if self._fingerprints.get(name) == _secret_fingerprint(process_secret):
            return
        self._fingerprints[name] = _secret_fingerprint(process_secret)
        self._is_saved = False
        try:
            self.save()
        except OSError as error:
            _log.warning("%s cannot be written (%s): after a resume %s needs a new token", self._path, error, name)

    def save(self) -> None:
        """Write what could not be written before; raises OSError."""
        if not self._is_saved:
            _write_admitted(self._path, self._fingerprints)
            self._is_saved = True


def _secret_fingerprint(process_secret: str) -> str:
    return hashlib.sha256(process_secret.encode()).hexdigest()


def read_admitted(run: Path) -> dict[str, str] | None:
    """The fingerprints of the devices that joined a run; None if none did."""
    return read_decoded(run / ADMITTED_FILE, msgspec.json.Decoder(dict[str, str]).decode)


def _write_admitted(path: Path, fingerprints: dict[str, str]) -> None:
    write_atomically(path, msgspec.json.encode(fingerprints), private=True)

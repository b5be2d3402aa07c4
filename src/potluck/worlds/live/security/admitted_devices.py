"""Remembers which devices joined a run: an expired token still admits the device that joined with it.

With certificates the name of a device is authenticated and sufficient. Without them, a device is recognised by the
secret that its process generated and sends only to the coordinator (`JoinRequest.body`). Stored in the run's folder, so
that it survives a restart of the coordinator.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import msgspec

from potluck.atomic_file import write_atomically
from potluck.errors import UserError

__all__ = ["AdmittedDevices"]

_FILE = "admitted.json"

_log = logging.getLogger("potluck")


class AdmittedDevices:
    """The devices that joined one run, each with a fingerprint of the secret of its latest process."""

    def __init__(self, run: Path, certified: bool) -> None:
        self._path = run / _FILE
        self._certified = certified
        self._fingerprints = _read_admitted(self._path)

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
        try:
            _write_admitted(self._path, self._fingerprints)
        except OSError as error:
            _log.warning("%s cannot be written (%s): after a resume %s needs a new token", self._path, error, name)


def _secret_fingerprint(process_secret: str) -> str:
    return hashlib.sha256(process_secret.encode()).hexdigest()


def _read_admitted(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); remove it, and give the devices new tokens") from None


def _write_admitted(path: Path, fingerprints: dict[str, str]) -> None:
    write_atomically(path, msgspec.json.encode(fingerprints), private=True)

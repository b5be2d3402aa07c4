"""Who was let into a run: an invitation ends, but not for the device that has come in with it.

With certificates a device is who it says it is, so its name is enough. Without, it is known by its `body`: a secret
that its process made up and tells to the coordinator alone. Kept in the run's folder, so it outlives the coordinator.
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
    """The devices of one run, each with a fingerprint of the process that came in last."""

    def __init__(self, run: Path, certified: bool) -> None:
        self._path = run / _FILE
        self._certified = certified
        self._fingerprints = _read_admitted(self._path)

    def was_admitted(self, name: str, body: str) -> bool:
        """Whether this very device was let in before."""
        return (
            name in self._fingerprints
            if self._certified
            else bool(body) and self._fingerprints.get(name) == _secret_fingerprint(body)
        )

    def record_admission(self, name: str, body: str) -> None:
        """It is let in now."""
        if self._fingerprints.get(name) == _secret_fingerprint(body):
            return
        self._fingerprints[name] = _secret_fingerprint(body)
        try:
            _write_admitted(self._path, self._fingerprints)
        except OSError as error:
            _log.warning("%s cannot be written (%s): after a resume %s needs a new token", self._path, error, name)


def _secret_fingerprint(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _read_admitted(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); remove it, and give the devices new tokens") from None


def _write_admitted(path: Path, bodies: dict[str, str]) -> None:
    write_atomically(path, msgspec.json.encode(bodies), private=True)

"""The register of issued and revoked certificates; the authority writes it, the coordinator reads it.

Zenoh does not support revocation lists, but its access control distinguishes certificates by common name. So a revoked
common name is never admitted again, and the device's next certificate gets another one (`pi-3`, `pi-3~2`, …).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from potluck.atomic_file import write_atomically
from potluck.errors import UserError
from potluck.worlds.live.security.tls_credentials import format_utc, numbered_common_name

__all__ = [
    "CertificateRegister",
    "IssuedCertificate",
    "RevokedCertificate",
    "admitted_common_names",
    "load_register",
    "revocation_reason",
    "save_register",
]

_FILE = "register.json"


class IssuedCertificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One certificate that was issued."""

    name: str
    common_name: str
    serial: str
    issued: datetime
    expires: datetime
    hosts: tuple[str, ...] = ()


class RevokedCertificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A common name that is no longer admitted, and with it all certificates that have it."""

    name: str
    common_name: str
    at: datetime


class CertificateRegister(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All certificates in the order of issue, and all revocations."""

    issued: tuple[IssuedCertificate, ...] = ()
    revoked: tuple[RevokedCertificate, ...] = ()

    def current_common_name(self, name: str) -> str:
        """The common name that a certificate of this device must have now, whether one was issued or not."""
        return numbered_common_name(name, sum(one.name == name for one in self.revoked))

    def latest_certificate(self, name: str) -> IssuedCertificate | None:
        """The latest certificate of a device."""
        return next((one for one in reversed(self.issued) if one.name == name), None)

    def device_names(self) -> list[str]:
        """All devices that ever got a certificate, in the order of the first one."""
        return list(dict.fromkeys(one.name for one in self.issued))

    def certificate_state(self, name: str, now: datetime) -> str:
        """The state of a device's latest certificate: `valid`, `expired` or `revoked`."""
        last = self.latest_certificate(name)
        if last is None or last.common_name != self.current_common_name(name):
            return "revoked"
        return "valid" if now <= last.expires else "expired"


def load_register(folder: Path) -> CertificateRegister:
    """The register of an authority's folder, or an empty one."""
    path = folder / _FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=CertificateRegister)
    except FileNotFoundError:
        return CertificateRegister()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); make it readable for this user") from None
    except msgspec.DecodeError as error:
        raise UserError(
            f"{path} is damaged ({error}); restore it from a backup: it lists the revoked certificates"
        ) from None


def save_register(register: CertificateRegister, folder: Path) -> None:
    write_atomically(folder / _FILE, msgspec.json.format(msgspec.json.encode(register), indent=2) + b"\n")


def admitted_common_names(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The common name under which each device is admitted to a run that starts now."""
    register = load_register(folder)
    return {name: register.current_common_name(name) for name in names}


def revocation_reason(folder: Path, name: str, admitted: Mapping[str, str]) -> str | None:
    """Why a device that the run admitted at its start may no longer join; None if it may."""
    register = load_register(folder)
    if name not in admitted or register.current_common_name(name) == admitted[name]:
        return None
    at = max(one.at for one in register.revoked if one.name == name)
    latest = register.latest_certificate(name)
    if latest is not None and latest.common_name == register.current_common_name(name):
        return (
            f"the certificate that {name} had when this run started was revoked on {format_utc(at.astimezone(UTC))};"
            f" its new one is admitted once the coordinator is started again with `potluck resume`"
        )
    return (
        f"the certificate of {name} was revoked on {format_utc(at.astimezone(UTC))};"
        f" issue a new one with `potluck certs issue {name}` and start the coordinator again with `potluck resume`"
    )

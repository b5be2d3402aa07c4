"""The fleet's own certificate authority, kept in one folder.

certs/
  ca.pem  ca.key        the authority; anyone who has ca.key can issue certificates
  register.json         issued and revoked certificates; the coordinator reads it
  coordinator/          ca.pem  cert.pem  key.pem
  pi-3/                 a bundle: copy the whole folder to the device
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from potluck.atomic_file import write_atomically
from potluck.errors import UserError
from potluck.fleet.fleet_devices import COORDINATOR
from potluck.worlds.live.security import certificate_register
from potluck.worlds.live.security.certificate_register import IssuedCertificate, RevokedCertificate
from potluck.worlds.live.security.certificate_signing import (
    CertificateWithKey,
    check_device_name,
    create_authority,
    load_authority,
    mdns_host_names,
    sign_member,
)
from potluck.worlds.live.security.tls_credentials import common_name, format_utc

__all__ = ["COORDINATOR", "CertificateAuthority"]

_AUTHORITY_DAYS = 3650
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class CertificateAuthority:
    """Issues and revokes the certificates of one fleet."""

    def __init__(self, folder: Path, ca: CertificateWithKey) -> None:
        self._folder = folder
        self._ca = ca

    @classmethod
    def create(cls, folder: Path, hosts: Sequence[str], days: int, now: datetime) -> CertificateAuthority:
        """Create an authority with a certificate for the coordinator under these host names and addresses."""
        for name in ("ca.key", "ca.pem"):
            if (folder / name).exists():
                raise UserError(f"{folder / name} exists already; add devices with `potluck certs issue NAME`")
        authority = cls(folder, create_authority(now, max(days, _AUTHORITY_DAYS)))
        hosts = _with_loopback(hosts)
        first = authority._sign_certificate(COORDINATOR, hosts, days, now)  # first, since a host may be invalid
        _make_folder(folder)
        write_atomically(folder / "ca.key", authority._ca.key_pem(), private=True)
        write_atomically(folder / "ca.pem", authority._ca.certificate_pem())
        authority._write_bundle(COORDINATOR, first, hosts, now)
        return authority

    @classmethod
    def open(cls, folder: Path) -> CertificateAuthority:
        """Open an existing authority."""
        try:
            return cls(folder, load_authority((folder / "ca.pem").read_bytes(), (folder / "ca.key").read_bytes()))
        except FileNotFoundError as error:
            raise UserError(f"{error.filename} is missing; make an authority with `potluck certs init`") from None
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read ({error.strerror})") from None
        except (ValueError, TypeError) as error:
            raise UserError(f"{folder}: ca.pem and ca.key are not a usable authority ({error})") from None

    def issue_certificate(self, name: str, hosts: Sequence[str] | None, days: int, now: datetime) -> Path:
        """Write a new bundle, replacing an older one; without `hosts` it keeps those of the older one."""
        check_device_name(name)
        hosts = self._allowed_hosts(name, hosts)
        return self._write_bundle(name, self._sign_certificate(name, hosts, days, now), hosts, now)

    def _allowed_hosts(self, name: str, requested: Sequence[str] | None) -> Sequence[str]:
        """The hosts for a certificate; never the coordinator's, so that a device cannot impersonate it."""
        register = certificate_register.load_register(self._folder)
        latest = register.latest_certificate(name)
        if name == COORDINATOR:
            return _with_loopback(requested if requested is not None else latest.hosts if latest is not None else ())
        coordinator = register.latest_certificate(COORDINATOR)
        reserved = {host.lower() for host in (coordinator.hosts if coordinator is not None else _LOOPBACK)}
        if requested is None:
            requested = latest.hosts if latest is not None else mdns_host_names(name)
            return [host for host in requested if host.lower() not in reserved]
        for host in requested:
            if host.lower() in reserved:
                raise UserError(
                    f"{host} belongs to the coordinator; leave it out, or {name} could impersonate the coordinator"
                )
        return requested

    def revoke_certificate(self, name: str, now: datetime) -> RevokedCertificate:
        """Revoke all certificates that this device has so far."""
        if name == COORDINATOR:
            raise UserError(
                "the coordinator's certificate cannot be revoked, since devices keep no register;"
                " make a new authority in another folder"
            )
        register = certificate_register.load_register(self._folder)
        if register.latest_certificate(name) is None:
            raise UserError(
                f"{name!r} has no certificate; devices that have one: {', '.join(register.device_names()) or 'none'}"
            )
        if register.certificate_state(name, now) == "revoked":
            raise UserError(f"{name!r} is revoked already; issue a new one with `potluck certs issue {name}`")
        revoked = RevokedCertificate(name=name, common_name=register.current_common_name(name), at=now)
        certificate_register.save_register(
            msgspec.structs.replace(register, revoked=(*register.revoked, revoked)), self._folder
        )
        return revoked

    def _sign_certificate(self, name: str, hosts: Sequence[str], days: int, now: datetime) -> CertificateWithKey:
        ends = self._ca.certificate.not_valid_after_utc
        days_left = (ends - now).days
        if days_left < 1:
            raise UserError(
                f"the authority in {self._folder} expired on {format_utc(ends)}; make a new one in another folder"
            )
        current_name = certificate_register.load_register(self._folder).current_common_name(name)
        return sign_member(self._ca, current_name, hosts, now, min(days, days_left))

    def _write_bundle(self, name: str, signed: CertificateWithKey, hosts: Sequence[str], now: datetime) -> Path:
        bundle = self._folder / name
        _make_folder(bundle)
        write_atomically(bundle / "key.pem", signed.key_pem(), private=True)
        write_atomically(bundle / "cert.pem", signed.certificate_pem())
        write_atomically(bundle / "ca.pem", self._ca.certificate_pem())
        register = certificate_register.load_register(self._folder)
        entry = _register_entry(name, signed, hosts, now)
        certificate_register.save_register(
            msgspec.structs.replace(register, issued=(*register.issued, entry)), self._folder
        )
        return bundle


def _with_loopback(hosts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*hosts, *_LOOPBACK)))


def _register_entry(name: str, signed: CertificateWithKey, hosts: Sequence[str], now: datetime) -> IssuedCertificate:
    return IssuedCertificate(
        name=name,
        common_name=common_name(signed.certificate),
        serial=f"{signed.certificate.serial_number:x}",
        issued=now.astimezone(UTC),
        expires=signed.certificate.not_valid_after_utc,
        hosts=tuple(hosts),
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made ({error.strerror}); choose another with --certs") from None

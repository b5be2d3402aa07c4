"""The fleet's own certificate authority, kept in one folder.

certs/
  ca.pem  ca.key        the authority; whoever has ca.key can make devices
  register.json         who got a certificate, who lost it; the coordinator reads it
  coordinator/          ca.pem  cert.pem  key.pem
  pi-3/                 a bundle: copy the folder to the device as it is
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from potluck.atomic_file import write_atomically
from potluck.errors import UserError
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

COORDINATOR = "coordinator"
_AUTHORITY_DAYS = 3650
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class CertificateAuthority:
    """Issues and revokes the certificates of one fleet."""

    def __init__(self, folder: Path, own: CertificateWithKey) -> None:
        self._folder = folder
        self._ca = own

    @classmethod
    def create(cls, folder: Path, hosts: Sequence[str], days: int, now: datetime) -> CertificateAuthority:
        """A new authority, with a certificate for the coordinator, who is called by these names and addresses."""
        for name in ("ca.key", "ca.pem"):
            if (folder / name).exists():
                raise UserError(f"{folder / name} is there already; add devices with `potluck certs issue NAME`")
        authority = cls(folder, create_authority(now, max(days, _AUTHORITY_DAYS)))
        hosts = _with_loopback(hosts)
        first = authority._sign_certificate(
            COORDINATOR, hosts, days, now
        )  # before anything is written: a host may be wrong
        _make_folder(folder)
        write_atomically(folder / "ca.key", authority._ca.key_pem(), private=True)
        write_atomically(folder / "ca.pem", authority._ca.certificate_pem())
        authority._write_bundle(COORDINATOR, first, hosts, now)
        return authority

    @classmethod
    def open(cls, folder: Path) -> CertificateAuthority:
        """An authority that was created before."""
        try:
            return cls(folder, load_authority((folder / "ca.pem").read_bytes(), (folder / "ca.key").read_bytes()))
        except FileNotFoundError as error:
            raise UserError(f"{error.filename} is missing; make an authority with `potluck certs init`") from None
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read ({error.strerror})") from None
        except (ValueError, TypeError) as error:
            raise UserError(f"{folder}: ca.pem and ca.key are not a usable authority ({error})") from None

    def issue_certificate(self, name: str, hosts: Sequence[str] | None, days: int, now: datetime) -> Path:
        """A new bundle in place of an older one; without hosts it keeps those of the older one."""
        check_device_name(name)
        hosts = self._allowed_hosts(name, hosts)
        return self._write_bundle(name, self._sign_certificate(name, hosts, days, now), hosts, now)

    def _allowed_hosts(self, name: str, wanted: Sequence[str] | None) -> Sequence[str]:
        """A device must not be able to pass for the coordinator, so it never gets one of its addresses."""
        known = certificate_register.load_register(self._folder)
        last = known.latest_certificate(name)
        if name == COORDINATOR:
            return _with_loopback(wanted if wanted is not None else last.hosts if last is not None else ())
        coordinator = known.latest_certificate(COORDINATOR)
        taken = {host.lower() for host in (coordinator.hosts if coordinator is not None else _LOOPBACK)}
        if wanted is None:
            wanted = last.hosts if last is not None else mdns_host_names(name)
            return [host for host in wanted if host.lower() not in taken]
        for host in wanted:
            if host.lower() in taken:
                raise UserError(f"{host} is the coordinator's; leave it out, or {name} could pass for the coordinator")
        return wanted

    def revoke_certificate(self, name: str, now: datetime) -> RevokedCertificate:
        """No certificate that this device has got so far is admitted any more."""
        if name == COORDINATOR:
            raise UserError("the coordinator cannot be revoked, devices keep no list; make a new authority elsewhere")
        known = certificate_register.load_register(self._folder)
        if known.latest_certificate(name) is None:
            raise UserError(f"{name!r} has no certificate here; known are: {', '.join(known.device_names()) or 'none'}")
        if known.certificate_state(name, now) == "revoked":
            raise UserError(f"{name!r} is revoked already; issue a new one with `potluck certs issue {name}`")
        revoked = RevokedCertificate(name=name, common_name=known.current_common_name(name), at=now)
        certificate_register.save_register(
            msgspec.structs.replace(known, revoked=(*known.revoked, revoked)), self._folder
        )
        return revoked

    def _sign_certificate(self, name: str, hosts: Sequence[str], days: int, now: datetime) -> CertificateWithKey:
        ends = self._ca.certificate.not_valid_after_utc
        left = (ends - now).days
        if left < 1:
            raise UserError(
                f"the authority in {self._folder} expired on {format_utc(ends)}; make a new one in another folder"
            )
        bears = certificate_register.load_register(self._folder).current_common_name(name)
        return sign_member(self._ca, bears, hosts, now, min(days, left))

    def _write_bundle(self, name: str, minted: CertificateWithKey, hosts: Sequence[str], now: datetime) -> Path:
        bundle = self._folder / name
        _make_folder(bundle)
        write_atomically(bundle / "key.pem", minted.key_pem(), private=True)
        write_atomically(bundle / "cert.pem", minted.certificate_pem())
        write_atomically(bundle / "ca.pem", self._ca.certificate_pem())
        known = certificate_register.load_register(self._folder)
        entry = _register_entry(name, minted, hosts, now)
        certificate_register.save_register(msgspec.structs.replace(known, issued=(*known.issued, entry)), self._folder)
        return bundle


def _with_loopback(hosts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*hosts, *_LOOPBACK)))


def _register_entry(name: str, minted: CertificateWithKey, hosts: Sequence[str], now: datetime) -> IssuedCertificate:
    return IssuedCertificate(
        name=name,
        common_name=common_name(minted.certificate),
        serial=f"{minted.certificate.serial_number:x}",
        issued=now.astimezone(UTC),
        expires=minted.certificate.not_valid_after_utc,
        hosts=tuple(hosts),
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made ({error.strerror}); choose another with --certs") from None

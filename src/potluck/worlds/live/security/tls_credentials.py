"""The three TLS files of a process (authority, certificate, key), checked before Zenoh uses them.

Zenoh reports every certificate problem as the same timeout, so everything that can be checked beforehand is.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from potluck.errors import UserError

if TYPE_CHECKING:
    from cryptography import x509

__all__ = [
    "TlsCredentials",
    "common_name",
    "device_of_common_name",
    "format_utc",
    "needs_tls",
    "numbered_common_name",
    "revocations_before",
]

_ADDRESS = re.compile(r"(?:(?P<protocol>[a-z0-9-]+)/)?(?P<address>[^?#]*).*")
_LOCAL_PROTOCOLS = {"unixpipe", "unixsock-stream"}
_SEPARATOR = "~"  # precedes the number in the common name of a device whose earlier certificates were revoked


class TlsCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """The paths of the fleet's authority, the process's certificate and its private key."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def from_bundle(cls, bundle: Path) -> Self:
        """The files of a bundle that `potluck certs` made."""
        if not bundle.is_dir():
            raise UserError(
                f"{bundle}: there is no such bundle; make one with `potluck certs issue NAME` and copy it there"
            )
        return cls(ca=bundle / "ca.pem", certificate=bundle / "cert.pem", key=bundle / "key.pem")

    def check_files(self, now: datetime | None = None) -> str:
        """Check the files and return the device that the certificate names; UserError says what is wrong."""
        ca, certificate = _read_certificate(self.ca), _read_certificate(self.certificate)
        name = device_of_common_name(common_name(certificate))
        _check_dates(certificate, name, now or datetime.now(UTC))
        _check_signature(certificate, ca, self)
        _check_key(certificate, name, self.key)
        return name

    def certified_hosts(self) -> tuple[str, ...]:
        """The host names and addresses that the certificate is valid for, in its order."""
        from cryptography import x509

        try:
            names = (
                _read_certificate(self.certificate)
                .extensions.get_extension_for_class(x509.SubjectAlternativeName)
                .value
            )
        except x509.ExtensionNotFound:
            return ()
        return tuple(str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress))

    def zenoh_settings(self) -> dict[str, object]:
        """Zenoh's `transport/link/tls` settings: mutual TLS, and the server's name is verified."""
        own, key = str(self.certificate.absolute()), str(self.key.absolute())
        return {
            "root_ca_certificate": str(self.ca.absolute()),
            "enable_mtls": True,
            "verify_name_on_connect": True,
            "close_link_on_expiration": True,
            "listen_certificate": own,
            "listen_private_key": key,
            "connect_certificate": own,
            "connect_private_key": key,
        }


def needs_tls(locator: str) -> bool:
    """Whether traffic to this locator leaves the machine: anything but loopback and local sockets."""
    match = _ADDRESS.fullmatch(locator)
    assert match is not None
    if match["protocol"] in _LOCAL_PROTOCOLS:
        return False
    return not any(_is_loopback(host) for host in (match["address"], match["address"].rpartition(":")[0]))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def common_name(certificate: x509.Certificate) -> str:
    """The name that the certificate was issued to."""
    from cryptography.x509.oid import NameOID

    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def numbered_common_name(name: str, revocations: int) -> str:
    """The common name for a device's certificates: another one after each revocation, so that old ones never match."""
    return f"{name}{_SEPARATOR}{revocations + 1}" if revocations else name


def device_of_common_name(common_name: str) -> str:
    """The device that a common name belongs to."""
    return common_name.partition(_SEPARATOR)[0]


def revocations_before(common_name: str) -> int:
    """How many certificates of its device were revoked before one with this common name was issued."""
    number = common_name.partition(_SEPARATOR)[2]
    return int(number) - 1 if number.isdecimal() and len(number) < 10 else 0


def format_utc(when: datetime) -> str:
    """A time for messages, in UTC."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _read_certificate(path: Path) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path} is missing; copy the whole bundle that `potluck certs issue` made") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); make it readable for this user") from None
    except ValueError:
        raise UserError(f"{path} is not a PEM certificate; copy the bundle again") from None


def _check_dates(certificate: x509.Certificate, name: str, now: datetime) -> None:
    if now > certificate.not_valid_after_utc:
        expired_at = format_utc(certificate.not_valid_after_utc)
        raise UserError(f"certificate of {name} expired on {expired_at}; issue a new one: potluck certs issue {name}")
    if now < certificate.not_valid_before_utc:
        valid_from = format_utc(certificate.not_valid_before_utc)
        raise UserError(
            f"certificate of {name} is valid from {valid_from}, but this machine's clock says {format_utc(now)};"
            f" set the clock (chrony)"
        )


def _check_signature(certificate: x509.Certificate, ca: x509.Certificate, tls: TlsCredentials) -> None:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        raise UserError(f"{tls.certificate} was not signed by {tls.ca}; copy the whole bundle again") from None


def _check_key(certificate: x509.Certificate, name: str, path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        key = load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; copy the whole bundle that `potluck certs issue` made") from None
    except OSError as error:
        raise UserError(
            f"key of {name} cannot be read ({error.strerror}); give it to this user: chown $USER {path}"
        ) from None
    except (ValueError, TypeError):
        raise UserError(f"{path} is not an unencrypted private key; copy the bundle again") from None
    if os.name == "posix" and mode & 0o077:
        raise UserError(f"key of {name} is accessible to other users (mode {mode:o}); run: chmod 600 {path}")
    if key.public_key() != certificate.public_key():
        raise UserError(f"{path} is not the key of {name}'s certificate; copy the whole bundle again")

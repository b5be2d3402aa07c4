"""Generates keys and signs X.509 certificates, and names this machine as others reach it; knows nothing of files."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from potluck.errors import UserError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
import socket

__all__ = [
    "AUTHORITY",
    "CertificateWithKey",
    "check_device_name",
    "create_authority",
    "load_authority",
    "local_address",
    "local_host_names",
    "mdns_host_names",
    "sign_member",
]


AUTHORITY = "Potluck fleet authority"
_NAME = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}"
)  # X.509 limits a common name to 64 characters; ours may get a suffix
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")
_CLOCK_ERROR = timedelta(hours=24)  # boards without a clock battery boot with a time in the past

_UNROUTED = ("192.0.2.1", 9)  # TEST-NET: connecting a datagram socket only looks up a route, nothing is sent


class CertificateWithKey(NamedTuple):
    """A certificate with its private key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey

    def certificate_pem(self) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding

        return self.certificate.public_bytes(Encoding.PEM)

    def key_pem(self) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def check_device_name(name: str) -> None:
    """Check a device's name, which is used in a certificate, a folder name and a key expression."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"name {name!r} cannot be used in a certificate; use up to 48 letters, digits, '.', '_' and '-'"
        )


def mdns_host_names(name: str) -> tuple[str, ...]:
    """The host names by which the local network reaches a device of that name; none if it is not a valid host name."""
    return (name, f"{name}.local") if _HOST.fullmatch(name) else ()


def create_authority(now: datetime, days: int) -> CertificateWithKey:
    """Create an authority that may sign members, but no further authorities."""
    from cryptography import x509

    key = _generate_key()
    builder = _certificate_builder(AUTHORITY, AUTHORITY, key, now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs=True), critical=True)
    return _sign_certificate(builder, key, key)


def sign_member(
    authority: CertificateWithKey, common_name: str, hosts: Sequence[str], now: datetime, days: int
) -> CertificateWithKey:
    """Sign a certificate for a client that is also a server under the given host names and addresses."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = _generate_key()
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = _certificate_builder(common_name, AUTHORITY, key, now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    builder = builder.add_extension(_authority_key_id(authority), critical=False)
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_subject_alt_name(one) for one in hosts]), critical=False
        )
    return _sign_certificate(builder, key, authority.key)


def load_authority(certificate_pem: bytes, key_pem: bytes) -> CertificateWithKey:
    """Load a saved authority; ValueError if the files are invalid or do not match."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    certificate = x509.load_pem_x509_certificate(certificate_pem)
    key = load_pem_private_key(key_pem, password=None)
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError("the key does not belong to the certificate")
    return CertificateWithKey(certificate, key)


def _generate_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _certificate_builder(
    subject: str, issuer: str, key: EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = now.astimezone(UTC)
    builder = x509.CertificateBuilder().subject_name(_x509_name(subject)).issuer_name(_x509_name(issuer))
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _CLOCK_ERROR).not_valid_after(now + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _x509_name(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _authority_key_id(authority: CertificateWithKey) -> x509.AuthorityKeyIdentifier:
    from cryptography import x509

    return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())


def _subject_alt_name(text: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    if not _HOST.fullmatch(text):
        raise UserError(f"{text!r} is neither a host name nor an IP address; give it without a port, like 192.168.1.5")
    return x509.DNSName(text)


def _sign_certificate(
    builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey, signing_key: EllipticCurvePrivateKey
) -> CertificateWithKey:
    from cryptography.hazmat.primitives.hashes import SHA256

    return CertificateWithKey(builder.sign(signing_key, SHA256()), key)


def local_host_names() -> tuple[str, ...]:
    """This machine's address, its host name, and its mDNS name (`.local`)."""
    name = socket.gethostname().partition(".")[0]
    return tuple(host for host in (local_address(), *mdns_host_names(name)) if host)


def local_address() -> str | None:
    """The address that the local network reaches this machine by; None without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_UNROUTED)
        except OSError:
            return None
        return str(probe.getsockname()[0])

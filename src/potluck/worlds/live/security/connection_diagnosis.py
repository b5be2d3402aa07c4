"""Explains why a connection fails: Zenoh reports only a timeout, so this connects once itself and looks at the error.

Blocks for a few seconds at most; call it in a thread after a connection failed.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl

from potluck.worlds.live.security.tls_credentials import TlsCredentials

__all__ = ["diagnose_connection"]

_LOCATOR = re.compile(r"(?:[a-z0-9-]+/)?\[?(?P<host>[^\]/?#]+?)\]?:(?P<port>\d{1,5})(?:[?#].*)?")
_EXPIRED, _NOT_YET, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 62, 64  # OpenSSL's verify codes
_ALERTS = {
    "ALERT_CERTIFICATE_REQUIRED": "requires a certificate; join with the bundle that `potluck certs issue` made",
    "ALERT_CERTIFICATE_EXPIRED": "says that our certificate has expired; issue a new one with `potluck certs issue`",
    "ALERT_DECRYPT_ERROR": "does not know the authority of our certificate; use a bundle of its own authority",
    "ALERT_UNKNOWN_CA": "does not know the authority of our certificate; use a bundle of its own authority",
}


def diagnose_connection(locator: str, tls: TlsCredentials | None, timeout_s: float = 3.0) -> str | None:
    """One sentence about what prevents a connection to `locator`; None if nothing does."""
    match = _LOCATOR.fullmatch(locator)
    if match is None:
        return f"{locator!r} is not an address; use one like 192.168.1.5:7447"
    address = f"{match['host']}:{match['port']}"
    try:
        with socket.create_connection((match["host"], int(match["port"])), timeout_s) as connection:
            return None if tls is None else _try_tls_handshake(connection, match["host"], address, tls)
    except socket.gaierror:
        return f"no machine called {match['host']} is known on this network; check the name, or use its IP address"
    except ConnectionRefusedError:
        return f"nobody listens at {address}; is `potluck serve` running there, with this port?"
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no answer"
        return f"{address} cannot be reached ({reason}); check the address, the network and the firewall there"


def _try_tls_handshake(connection: socket.socket, host: str, address: str, tls: TlsCredentials) -> str | None:
    context = ssl.create_default_context(cafile=str(tls.ca))
    context.load_cert_chain(tls.certificate, tls.key)
    try:
        with context.wrap_socket(connection, server_hostname=host) as secured:
            _await_tls_alert(secured)
            return None
    except ssl.SSLCertVerificationError as error:
        return _explain_verify_error(error.verify_code, host, address)
    except ssl.SSLError as error:
        return _explain_tls_alert(error, address)


def _await_tls_alert(secured: ssl.SSLSocket) -> None:
    """In TLS 1.3 the server checks the client's certificate after the handshake; silence means that it accepts."""
    secured.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        secured.recv(1)


def _explain_verify_error(code: int, host: str, address: str) -> str:
    if code in (_OTHER_HOST, _OTHER_ADDRESS):
        return (
            f"the certificate at {address} is not valid for {host}; use a name that it contains,"
            f" or add this one: potluck certs issue coordinator --host {host}"
        )
    if code == _EXPIRED:
        return f"the certificate at {address} has expired; renew it there: potluck certs issue coordinator"
    if code == _NOT_YET:
        return f"the certificate at {address} is not valid yet; is the clock of this device right (chrony)?"
    return f"the certificate at {address} is signed by another authority; use a bundle of the same authority"


def _explain_tls_alert(error: ssl.SSLError, address: str) -> str:
    for name, meaning in _ALERTS.items():
        if name in (error.reason or ""):
            return f"{address} {meaning}"
    return f"TLS handshake with {address} failed ({error.reason or error}); is this the port of `potluck serve`?"

"""Issues and checks join tokens, which are signed with a secret that never leaves the run's folder.

A token states when it expires, for which job it is and, optionally, for which devices. With mutual TLS it is a second
factor beside the certificate; on loopback it is the only check.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from potluck.atomic_file import read_decoded, write_atomically
from potluck.errors import UserError
from potluck.worlds.live.security.tls_credentials import format_utc

__all__ = ["SECRET_FILE", "check_token", "issue_token", "load_run_secret", "read_run_secret"]

SECRET_FILE = "join.secret"

_SECRET_BYTES = 32
_MAX_LENGTH = 4096  # characters; a longer token is not even decoded
_CONTEXT = b"potluck join token 1\0"
_GET_NEW_TOKEN = "ask for a new one with `potluck serve`"


class _TokenClaims(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    expires_at: int
    job: str
    names: tuple[str, ...] | None = None


def load_run_secret(folder: Path) -> bytes:
    """The secret of a run, generated on first use; the same after a resume, so that old tokens stay valid."""
    secret = read_run_secret(folder)
    if secret is not None:
        return secret
    path, secret = folder / SECRET_FILE, secrets.token_bytes(_SECRET_BYTES)
    try:
        write_atomically(path, secret, private=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); choose another folder for the run") from None
    return secret


def read_run_secret(folder: Path) -> bytes | None:
    """The secret of a run; None if it has none yet, DamagedFileError if it is not one."""
    return read_decoded(folder / SECRET_FILE, _check_secret)


def _check_secret(content: bytes) -> bytes:
    if len(content) != _SECRET_BYTES:
        raise ValueError(f"it has {len(content)} of {_SECRET_BYTES} bytes")
    return content


def issue_token(secret: bytes, job_digest: str, expires_at: datetime, names: Iterable[str] | None = None) -> str:
    """A token for this job until `expires_at`; with `names`, for these devices only."""
    allowed = tuple(sorted(names)) if names is not None else None
    content = msgspec.json.encode(_TokenClaims(int(expires_at.timestamp()), _job_fingerprint(job_digest), allowed))
    return f"{_encode_base64(content)}.{_encode_base64(_token_signature(secret, content))}"


def check_token(
    token: str, secret: bytes, job_digest: str, name: str, now: datetime, *, rejoining: bool = False
) -> str | None:
    """Why this token does not admit `name`, or None if it does; a device that is `rejoining` may use an expired one."""
    if not token:
        return "this run requires a join token; pass --token (printed by `potluck serve`)"
    claims = _decode_token(token, secret)
    if claims is None:
        return f"the token is damaged or of another run; copy all of it, or {_GET_NEW_TOKEN}"
    if not rejoining and now.timestamp() >= claims.expires_at:
        return f"the token has expired ({format_utc(datetime.fromtimestamp(claims.expires_at, UTC))}); {_GET_NEW_TOKEN}"
    if claims.job != _job_fingerprint(job_digest):
        return f"the token is for another job; {_GET_NEW_TOKEN}"
    if claims.names is not None and name not in claims.names:
        return f"the token is for {', '.join(claims.names)} and not for {name}; {_GET_NEW_TOKEN}"
    return None


def _decode_token(token: str, secret: bytes) -> _TokenClaims | None:
    """The token's claims if its signature is valid; they are decoded only after that check."""
    encoded, _, signature = token.partition(".")
    if len(token) > _MAX_LENGTH or not token.isascii():
        return None
    try:
        content, given = _decode_base64(encoded), _decode_base64(signature)
    except (binascii.Error, ValueError):
        return None
    if not hmac.compare_digest(given, _token_signature(secret, content)):
        return None
    return msgspec.json.decode(content, type=_TokenClaims)


def _token_signature(secret: bytes, content: bytes) -> bytes:
    return hmac.new(secret, _CONTEXT + content, hashlib.sha256).digest()


def _job_fingerprint(job_digest: str) -> str:
    return hashlib.sha256(job_digest.encode()).hexdigest()[:16]


def _encode_base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decode_base64(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)

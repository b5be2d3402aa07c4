"""Join tokens: an invitation to one run that expires, signed with a secret that never leaves the run's folder.

A token says until when it holds, for which job and, if wanted, for which devices. It is not a password: with
mutual TLS it is the second lock, on loopback the only one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from potluck.errors import UserError
from potluck.worlds.live.security.tls_credentials import format_utc

__all__ = ["check_token", "issue_token", "load_run_secret"]

_FILE = "join.secret"
_SECRET_BYTES = 32
_LONGEST = 4096  # letters of a token that we are willing to look at
_CONTEXT = b"potluck join token 1\0"
_AGAIN = "ask for a new one with `potluck serve`"


class _TokenClaims(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    expires_at: int
    job: str
    names: tuple[str, ...] | None = None


def load_run_secret(folder: Path) -> bytes:
    """The secret of a run, made when it is first asked for; the same after a resume, so old tokens go on to hold."""
    path = folder / _FILE
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_secret(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); choose another folder for the run") from None
    with os.fdopen(handle, "wb") as file:
        file.write(made := secrets.token_bytes(_SECRET_BYTES))
    return made


def issue_token(secret: bytes, job_digest: str, expires_at: datetime, names: Iterable[str] | None = None) -> str:
    """A token for this job until `expires_at`; with names, for these devices only."""
    only = tuple(sorted(names)) if names is not None else None
    invitation = msgspec.json.encode(_TokenClaims(int(expires_at.timestamp()), _job_fingerprint(job_digest), only))
    return f"{_encode_base64(invitation)}.{_encode_base64(_token_signature(secret, invitation))}"


def check_token(
    token: str, secret: bytes, job_digest: str, name: str, now: datetime, *, again: bool = False
) -> str | None:
    """Why this token does not let `name` in, or None where it does; whoever comes in `again` may do so for ever."""
    if not token:
        return "this run requires a join token; pass --token (printed by `potluck serve`)"
    invitation = _decode_token(token, secret)
    if invitation is None:
        return f"the token is damaged or of another run; copy all of it, or {_AGAIN}"
    if not again and now.timestamp() >= invitation.expires_at:
        return f"the token has expired ({format_utc(datetime.fromtimestamp(invitation.expires_at, UTC))}); {_AGAIN}"
    if invitation.job != _job_fingerprint(job_digest):
        return f"the token is for another job; {_AGAIN}"
    if invitation.names is not None and name not in invitation.names:
        return f"the token is for {', '.join(invitation.names)} and not for {name}; {_AGAIN}"
    return None


def _decode_token(token: str, secret: bytes) -> _TokenClaims | None:
    """What the token says, if we said it: nothing is read before the seal is found to be ours."""
    body, _, seal = token.partition(".")
    if len(token) > _LONGEST or not token.isascii():
        return None
    try:
        invitation, shown = _decode_base64(body), _decode_base64(seal)
    except (binascii.Error, ValueError):
        return None
    if not hmac.compare_digest(shown, _token_signature(secret, invitation)):
        return None
    return msgspec.json.decode(invitation, type=_TokenClaims)


def _token_signature(secret: bytes, invitation: bytes) -> bytes:
    return hmac.new(secret, _CONTEXT + invitation, hashlib.sha256).digest()


def _job_fingerprint(job_digest: str) -> str:
    return hashlib.sha256(job_digest.encode()).hexdigest()[:16]


def _encode_base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decode_base64(written: str) -> bytes:
    return base64.b64decode(written + "=" * (-len(written) % 4), altchars=b"-_", validate=True)


def _read_secret(path: Path) -> bytes:
    try:
        found = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); make it readable for this user") from None
    if len(found) != _SECRET_BYTES:
        raise UserError(f"{path} is damaged; remove it, and give the devices new tokens with `potluck serve`")
    return found

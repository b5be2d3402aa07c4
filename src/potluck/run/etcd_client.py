"""The few calls of etcd's HTTP/JSON gateway (/v3/…) that an election needs.

Keys and values are base64 on the wire, and 64-bit integers are strings. Every call is bounded in time and tries each
address once; `EtcdUnavailableError` says why none of them answered.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from potluck.errors import UserError

if TYPE_CHECKING:
    import httpx

__all__ = ["EtcdClient", "EtcdEntry", "EtcdUnavailableError", "parse_etcd_addresses"]


class EtcdUnavailableError(UserError):
    """No address of etcd answered as etcd does."""


class EtcdEntry(NamedTuple):
    """A key's value and the revision at which it was created."""

    value: bytes
    create_revision: int


def parse_etcd_addresses(text: str) -> list[str]:
    """The addresses in HTTP://HOST:PORT[,…]; UserError if one is not valid."""
    addresses = [part.strip().rstrip("/") for part in text.split(",") if part.strip()]
    for address in addresses:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
            raise UserError(f"--etcd {address}: not an address of etcd; it should look like http://192.168.1.5:2379")
    if not addresses:
        raise UserError("--etcd: no address; it should look like http://192.168.1.5:2379")
    return addresses


class EtcdClient:
    """Calls one etcd cluster; may be used from several threads."""

    def __init__(self, addresses: Sequence[str], timeout_s: float) -> None:
        self.addresses = list(addresses)
        self._http = _open_http_client(timeout_s)

    def grant_lease(self, seconds: int) -> tuple[int, float]:
        """A new lease and the seconds until it expires; etcd may grant more than was asked for."""
        answer = self._call("lease/grant", {"TTL": seconds})
        return int(answer["ID"]), float(answer["TTL"])

    def renew_lease(self, lease: int) -> float:
        """The seconds until the lease expires, from when the request was made; 0 if it has expired."""
        result = self._call("lease/keepalive", {"ID": str(lease)}).get("result", {})
        return float(result.get("TTL", 0))

    def revoke_lease(self, lease: int) -> None:
        """End a lease now; its keys are deleted."""
        self._call("lease/revoke", {"ID": str(lease)})

    def read(self, key: str) -> EtcdEntry | None:
        """The entry of a key; None if there is none."""
        entries = self._call("kv/range", {"key": _encode(key.encode())}).get("kvs", [])
        return None if not entries else _entry(entries[0])

    def create(self, key: str, value: bytes, lease: int) -> int | None:
        """Create a key that is deleted with the lease; the revision at which it was created, None if it exists."""
        put = {"requestPut": {"key": _encode(key.encode()), "value": _encode(value), "lease": str(lease)}}
        answer = self._call("kv/txn", {"compare": [_created_at(key, 0)], "success": [put]})
        return int(answer["header"]["revision"]) if answer.get("succeeded") else None

    def put_while(self, held_key: str, revision: int, key: str, value: bytes) -> bool:
        """Write a key if `held_key` still is the one that was created at `revision`; whether it was written."""
        put = {"requestPut": {"key": _encode(key.encode()), "value": _encode(value)}}
        return bool(
            self._call("kv/txn", {"compare": [_created_at(held_key, revision)], "success": [put]}).get("succeeded")
        )

    def close(self) -> None:
        self._http.close()

    def _call(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        import httpx

        problems = []
        for address in list(self.addresses):
            try:
                response = self._http.post(f"{address}/v3/{method}", json=body)
                answer = response.json()
                if response.is_success and isinstance(answer, dict):
                    self._prefer(address)
                    return answer
                problems.append(f"{address}: {_problem(answer, response.status_code)}")
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problems.append(f"{address}: {str(error) or type(error).__name__}")
            except ValueError:
                problems.append(f"{address}: it does not answer as etcd does (no JSON)")
        raise EtcdUnavailableError(f"etcd cannot be used ({'; '.join(problems)})")

    def _prefer(self, address: str) -> None:
        """Ask the address that answered first from now on."""
        if self.addresses[0] != address:
            self.addresses = [address, *(other for other in self.addresses if other != address)]


def _open_http_client(timeout_s: float) -> httpx.Client:
    try:
        import httpx
    except ImportError:
        raise UserError("--etcd needs httpx: pip install 'potluck[standby]'") from None
    return httpx.Client(timeout=timeout_s)


def _created_at(key: str, revision: int) -> dict[str, Any]:
    return {"key": _encode(key.encode()), "target": "CREATE", "create_revision": str(revision), "result": "EQUAL"}


def _entry(found: dict[str, Any]) -> EtcdEntry:
    return EtcdEntry(base64.b64decode(found.get("value", "")), int(found["create_revision"]))


def _problem(answer: Any, status: int) -> str:
    reason = answer.get("message") or answer.get("error") if isinstance(answer, dict) else None
    return str(reason or f"HTTP {status}")


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()

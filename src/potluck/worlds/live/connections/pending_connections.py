"""Decides which unfinished connection goes when there are too many. Pure: no clock, no socket.

Honest handshakes are fast, so the oldest unfinished connection is the least likely to be one; and the address with the
most of them is the most likely to be the cause. Other addresses are therefore not affected.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

__all__ = ["PendingConnections", "source_of"]


def source_of(host: str) -> str:
    """What is limited as one source: an IPv4 address, or the /64 network of an IPv6 address."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return str(address)


class PendingConnections:
    """Unfinished connections by source, oldest first."""

    def __init__(self, max_total: int, max_per_source: int) -> None:
        self._max_total = max_total
        self._max_per_source = max_per_source
        self._by_source: dict[str, dict[int, None]] = {}
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def add(self, source: str, connection: int) -> int | None:
        """Add a connection; returns the one to close in its place, if there are too many."""
        own = self._by_source.setdefault(source, {})
        own[connection] = None
        self._total += 1
        if len(own) > self._max_per_source:
            return next(iter(own))
        if self._total > self._max_total:
            busiest = max(self._by_source, key=lambda each: len(self._by_source[each]))
            return next(iter(self._by_source[busiest]))
        return None

    def discard(self, source: str, connection: int) -> None:
        own = self._by_source.get(source, {})
        if connection in own:
            del own[connection]
            self._total -= 1
            if not own:
                del self._by_source[source]

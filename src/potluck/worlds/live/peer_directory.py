"""What a node's transport knows of the node itself and asks about its peers.

The coordinator answers from its membership, a device from the roster that the coordinator sends.
"""

from __future__ import annotations

import msgspec

__all__ = ["NodeIdentity", "PeerDirectory"]


class NodeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which node this is, in which incarnation and era, and the limits that the run sets it."""

    name: str
    incarnation: int
    era: str
    seed: int
    lease: float
    limit_bytes: int  # of one message


class PeerDirectory:
    """The current incarnation of each peer, and what to do about messages that do not come from it."""

    def incarnation_of(self, name: str) -> int | None:
        """The peer's current incarnation; None if it is not connected."""
        raise NotImplementedError

    def record_contact(self, name: str, incarnation: int) -> None:
        """The peer's current incarnation sent something; called from any thread."""

    def on_stale_incarnation(self, name: str, incarnation: int) -> None:
        """A message arrived from an incarnation that is not the current one."""

    def on_protocol_violation(self, name: str, incarnation: int | None, reason: str) -> None:
        """The peer sent bytes that cannot be decoded or that it may not send."""

    def on_excess(self, name: str, count: int) -> None:
        """`count` messages of a peer were dropped, because it is expelled or sends too many."""

    async def before_last_chunk(self) -> None:
        """Awaited before the last chunk of each outgoing message is sent."""

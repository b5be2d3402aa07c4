"""Whom a node speaks to and listens to; each side of a run knows that in its own way."""

from __future__ import annotations

__all__ = ["PeerDirectory"]


class PeerDirectory:
    """Which life of whom we speak to, and listen to."""

    def incarnation_of(self, name: str) -> int | None:
        """Its present incarnation; None if it is not here."""
        raise NotImplementedError

    def record_contact(self, name: str, life: int) -> None:
        """Its present life gave a sign of itself; from any thread."""

    def on_stale_incarnation(self, name: str, life: int) -> None:
        """Something came from a life that is not the present one."""

    def on_protocol_violation(self, name: str, life: int | None, reason: str) -> None:
        """What came is none of our messages."""

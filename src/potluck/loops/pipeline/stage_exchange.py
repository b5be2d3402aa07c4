"""What a stage exchanges with its neighbours: micro-batches that arrive, those it sent, and requests to resend.

Messages get lost. A stage asks again for what it misses, so each keeps what it sent until nobody can miss it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from potluck.loops.messages import Bulky
from potluck.loops.node import Node
from potluck.loops.pipeline.messages import Resend
from potluck.loops.pipeline.stage_link import StageLink

__all__ = ["MessageKey", "StageExchange"]

MessageKey = tuple[str, int]  # the name of the message and the micro-batch


class StageExchange:
    """The inbox and the sent log of one stage."""

    def __init__(self, node: Node, link: StageLink, term: int, order: Sequence[str], log_length: int) -> None:
        self._node = node
        self._link = link
        self._term = term
        self._order = order
        self._index = order.index(node.name)
        self._log_length = log_length  # in micro-batches
        self._inbox: dict[MessageKey, Bulky] = {}
        self._awaited: list[MessageKey] = []
        self._sent_log: dict[MessageKey, tuple[str, Bulky, asyncio.Task[None]]] = {}

    @property
    def is_first(self) -> bool:
        return self._index == 0

    @property
    def is_last(self) -> bool:
        return self._index == len(self._order) - 1

    @property
    def previous_device(self) -> str:
        return self._order[self._index - 1]

    @property
    def next_device(self) -> str:
        return self._order[self._index + 1]

    @property
    def last_device(self) -> str:
        return self._order[-1]

    # --- receiving -------------------------------------------------------------------------------------------------

    def expected_sender(self, name: str) -> str | None:
        """The device that sends messages of this name to this stage; None if it needs none."""
        if name == "Gradient":
            return None if self.is_last else self.next_device
        if self.is_first or (name.endswith("Labels") and not self.is_last):
            return None
        return self._order[0] if name.endswith("Labels") else self.previous_device

    def store_message(self, micro_batch: int, message: Bulky) -> None:
        self._inbox[type(message).__name__, micro_batch] = message

    def peek_message(self, name: str, micro_batch: int) -> Bulky | None:
        return self._inbox.get((name, micro_batch))

    def pop_message(self, name: str, micro_batch: int) -> Bulky:
        return self._inbox.pop((name, micro_batch))

    def await_messages(self, keys: Sequence[MessageKey]) -> list[MessageKey]:
        """Which of the messages that the next task needs have not arrived."""
        self._awaited = [key for key in keys if key not in self._inbox]
        return self._awaited

    def awaited_messages(self) -> tuple[tuple[str, str, int], ...]:
        """The sender, the name and the micro-batch of each message that the next task waits for."""
        return tuple(
            (sender, name, micro_batch)
            for name, micro_batch in self._awaited
            if (sender := self.expected_sender(name)) is not None
        )

    def request_missing(self) -> None:
        """Ask again for the messages that the next task waits for."""
        for name, micro_batch in self._awaited:
            sender = self.expected_sender(name)
            assert sender is not None
            self._node.send(sender, Resend(self._term, name, micro_batch))

    # --- sending ---------------------------------------------------------------------------------------------------

    def send_message(self, to: str, message: Bulky) -> None:
        """Send a micro-batch and keep it for resending."""
        micro_batch: int = message.part  # type: ignore[attr-defined]
        key = type(message).__name__, micro_batch
        self._sent_log[key] = (to, message, self._link.send(to, message, batch=micro_batch))
        for old in [key for key in self._sent_log if key[1] < micro_batch - self._log_length]:
            del self._sent_log[old]

    def forget_sent(self, name: str, micro_batch: int) -> None:
        self._sent_log.pop((name, micro_batch), None)

    def resend_message(self, sender: str, request: Resend) -> None:
        """Send again what a neighbour misses, unless it is still in flight or not yet made."""
        to, message, sending = self._sent_log.get((request.what, request.part), (None, None, None))
        if message is not None and sending is not None and to == sender and sending.done():
            self.send_message(to, message)

    def sent_messages(self) -> tuple[MessageKey, ...]:
        """What the stage has sent and could send again."""
        return tuple(key for key, sent in self._sent_log.items() if sent[2].done())

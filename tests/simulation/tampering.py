"""Devices that follow the protocol but tamper with the messages they send."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
import pytest

from potluck.loops.messages import Bulky, Message
from potluck.loops.node import Node
from potluck.payload import Payload
from potluck.run.pipeline_setup import PipelineSetup
from potluck.run.rounds_setup import RoundsSetup

__all__ = ["Tamper", "tamper_with_messages", "with_arrays"]

Tamper = Callable[[str, Message], Iterable[Message]]  # (receiver, original message) → messages sent instead


class _TamperingNode:
    """A node that replaces the messages it sends."""

    def __init__(self, node: Node, tamper: Tamper) -> None:
        self._node = node
        self._tamper = tamper

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def send(self, to: str, message: Message) -> Awaitable[None]:
        *others, last = self._tamper(to, message)
        for other in others:
            self._node.send(to, other)
        return self._node.send(to, last)


def tamper_with_messages(patch: pytest.MonkeyPatch, device: str, tamper: Tamper) -> None:
    """Make one device of all later runs replace the messages it sends."""
    for kind in (RoundsSetup, PipelineSetup):
        patch.setattr(kind, "build_device_loop", _tampering_loop(kind.build_device_loop, device, tamper))


def _tampering_loop(original: Callable[..., Any], device: str, tamper: Tamper) -> Callable[..., Any]:
    def device_loop(self: Any, node: Node, state: Any) -> Any:
        return original(self, _TamperingNode(node, tamper) if node.name == device else node, state)

    return device_loop


def with_arrays(message: Bulky, change: Callable[[Any], Any]) -> Bulky:
    """The same message with changed arrays."""
    arrays = tuple(change(array) for array in message.payload.arrays)
    return msgspec.structs.replace(message, payload=Payload(message.payload.nbytes, arrays))

"""Devices that take part as they should, but for what they send."""

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

__all__ = ["Twist", "bend", "with_arrays"]

Twist = Callable[[str, Message], Iterable[Message]]  # (receiver, what it would have said) → what it says


class _Bent:
    """A node that says something else."""

    def __init__(self, node: Node, twist: Twist) -> None:
        self._node = node
        self._twist = twist

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def send(self, to: str, message: Message) -> Awaitable[None]:
        *others, last = self._twist(to, message)
        for other in others:
            self._node.send(to, other)
        return self._node.send(to, last)


def bend(patch: pytest.MonkeyPatch, device: str, twist: Twist) -> None:
    """Let one device of all runs from here on say something else than it should."""
    for kind in (RoundsSetup, PipelineSetup):
        patch.setattr(kind, "build_device_loop", _bent_loop(kind.build_device_loop, device, twist))


def _bent_loop(straight: Callable[..., Any], device: str, twist: Twist) -> Callable[..., Any]:
    def device_loop(self: Any, node: Node, belongings: Any) -> Any:
        return straight(self, _Bent(node, twist) if node.name == device else node, belongings)

    return device_loop


def with_arrays(message: Bulky, change: Callable[[Any], Any]) -> Bulky:
    """The same message with other values."""
    arrays = tuple(change(array) for array in message.payload.arrays)
    return msgspec.structs.replace(message, payload=Payload(message.payload.nbytes, arrays))

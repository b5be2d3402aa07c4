"""Takes Zenoh's place where the live runtimes run in one process: what a node sends is shown to the fuzzer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from potluck.worlds.live import node_runtime

__all__ = ["InlineExecutor", "MemoryQuery", "MemorySession", "MemoryTransport", "in_memory_transports"]


class MemoryTransport:
    """Passes what its node sends to `on_sent`: the receiver, the bytes, and whether they are bulk data."""

    def __init__(self, session: Any, era: str, name: str) -> None:
        self.session, self.era, self.name = session, era, name
        self.on_sent: Callable[[str, bytes, bool], None] = lambda to, data, bulk: None

    def subscribe_inbox(self, on_control: Any, on_bulk: Any) -> None:
        """The fuzzer calls the handlers itself."""

    def send_control(self, to: str, frame: bytes) -> None:
        self.on_sent(to, frame, False)

    send_control_now = send_control

    def flush_control(self) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def put_chunks(self, to: str, *chunks: Callable[[], tuple[bytes, bytes | None]]) -> None:
        for chunk in chunks:
            data, header = chunk()
            if header is None:
                self.on_sent(to, data, True)

    def close(self) -> None:
        pass


class MemorySession:
    """As much of a Zenoh session as an opened runtime uses."""

    info = SimpleNamespace(links=list)

    def declare_queryable(self, key: str, handler: Any) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryQuery:
    """A join request as Zenoh hands it over."""

    source_info = None

    def __init__(self, key: str, data: bytes) -> None:
        self.key_expr = key
        self.payload = SimpleNamespace(to_bytes=lambda: data)
        self.answers: list[bytes] = []

    def reply(self, key: str, data: bytes, express: bool = False) -> None:
        self.answers.append(data)

    def drop(self) -> None:
        pass


class InlineExecutor(ThreadPoolExecutor):
    """Runs everything at once in the calling thread, so that threads do not slow the fuzzer down."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


@contextmanager
def in_memory_transports() -> Iterator[None]:
    """Within this context, runtimes that are built use no network."""
    with patch.object(node_runtime, "ZenohTransport", MemoryTransport):
        yield

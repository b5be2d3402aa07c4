"""How fast a long message travels through a Node, beside a plain Zenoh put of the same size between the same processes.

Shared memory is off in both. The puller is a process of its own, started by spawn; what its memory grows by beyond the
payload is measured too.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import socket
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
import zenoh

from potluck.journal import Journal
from potluck.loops.messages import Joined, Pull, Released, Segment, Stop
from potluck.loops.node import COORDINATOR, Node
from potluck.payload import Payload
from potluck.worlds.live.greeting import Hello, RunCard, Welcome
from potluck.worlds.live.host import host
from potluck.worlds.live.session import Place, open_session
from potluck.worlds.live.visitor import visit

__all__ = ["Rate", "measure"]

_KEY = "potluck/rate/plain"
_WAIT_S = 60.0


class Rate(NamedTuple):
    """Bytes per second through a Node and through plain Zenoh, and what a pull needs beyond its payload."""

    node: float
    plain: float
    overhead_bytes: int

    @property
    def share(self) -> float:
        return self.node / self.plain


def measure(nbytes: int = 100_000_000, times: int = 5) -> Rate:
    """The best of so many pulls, each way."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    address, plain_address = _free_address(), _free_address()
    puller = context.Process(target=_pull_all, args=(there, address, plain_address, nbytes, times), daemon=True)
    puller.start()
    try:
        asyncio.run(_serve(address, nbytes))
        node, overhead = _receive(here)
        _serve_plain(here, plain_address, nbytes, times)
        (plain,) = _receive(here)
    finally:
        puller.join(10)
        puller.kill()
    return Rate(nbytes / node, nbytes / plain, int(overhead))


def _receive(pipe: Connection) -> tuple[float, ...]:
    if not pipe.poll(_WAIT_S):
        raise TimeoutError(f"not a word from the puller for {_WAIT_S:g} s")
    found: tuple[float, ...] = pipe.recv()
    return found


async def _serve(address: str, nbytes: int) -> None:
    payload = Payload(nbytes, (np.ones(nbytes, np.uint8),))

    async def coordinate(node: Node) -> None:
        while (envelope := await node.receive(node.now() + _WAIT_S)) is not None:
            match envelope.message:
                case Joined(device=device):
                    node.send(device, Released(0))
                case Pull(turn=turn):
                    node.send(envelope.sender, Segment(payload, turn=turn, first=0, last=0))
                case Stop():
                    return

    card = RunCard(run="rate", job="", limit_bytes=2 * nbytes)
    await host(
        Place(listen=(address,)), run=card, seed=0, journal=Journal(), coordinate=coordinate,
        welcome=lambda hello: hello.name,
    )  # fmt: skip


def _serve_plain(pipe: Connection, address: str, nbytes: int, times: int) -> None:
    session = open_session(Place(listen=(address,)), "router", 2 * nbytes)
    try:
        data = bytes(nbytes)
        pipe.send("listening")
        for _ in range(times):
            _receive(pipe)
            session.put(_KEY, data, congestion_control=zenoh.CongestionControl.BLOCK)
        _receive(pipe)
    finally:
        session.close()  # type: ignore[no-untyped-call]


# --- the puller -----------------------------------------------------------------------------------------------------


def _pull_all(pipe: Connection, address: str, plain_address: str, nbytes: int, times: int) -> None:
    seconds: list[float] = []
    overhead = [0]

    async def take_part(node: Node, welcome: Welcome) -> None:
        await node.receive()
        before = _peak_bytes()
        for turn in range(times):
            began = time.perf_counter()
            await node.send(COORDINATOR, Pull(turn, 0, 0))
            await node.receive()
            seconds.append(time.perf_counter() - began)
            if turn == 0:
                overhead[0] = _peak_bytes() - before - nbytes
        await node.send(COORDINATOR, Stop())
        await node.receive()

    asyncio.run(visit(Place(connect=(address,)), hello=Hello(name="puller"), take_part=take_part, once=True))
    pipe.send((min(seconds), overhead[0]))
    _pull_plain(pipe, plain_address, nbytes, times)


def _pull_plain(pipe: Connection, address: str, nbytes: int, times: int) -> None:
    pipe.recv()
    session = open_session(Place(connect=(address,)), "client", 2 * nbytes)
    subscriber = session.declare_subscriber(_KEY)
    time.sleep(0.2)  # until the router knows of it
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        pipe.send((0.0,))
        subscriber.recv().payload.to_bytes()
        seconds.append(time.perf_counter() - began)
    pipe.send((0.0,))
    session.close()  # type: ignore[no-untyped-call]
    pipe.send((min(seconds),))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp/127.0.0.1:{probe.getsockname()[1]}"

"""Measures how fast a large message travels through a Node and through plain Zenoh puts between the same two processes.

    coordinator's process                  puller's process (spawned)
    coordinator: a Segment per Pull ─────▶ device: seconds of each pull, growth of its memory
    plain session, one put ──────────────▶ plain subscriber
    plain session, one put per MiB ──────▶ plain subscriber

Shared memory is off in all three. Plain means that Zenoh gets the bytes as they are: no checks, no acknowledgements.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import resource
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zenoh

from potluck.journal import Journal
from potluck.loops.messages import Joined, Pull, Released, Segment, Stop
from potluck.loops.node import COORDINATOR, Node
from potluck.payload import Payload
from potluck.run.lab import free_loopback_address
from potluck.worlds.live.coordinator_runtime import run_coordinator
from potluck.worlds.live.device_runtime import run_device
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRequest, RunInfo
from potluck.worlds.live.link_shaping import CHUNK_BYTES
from potluck.worlds.live.zenoh_session import Endpoint, open_session

__all__ = ["CHUNK_BYTES", "MemoryGrowth", "PullTimes", "measure_pulls"]

_KEY = "potluck/bench/plain"
_WAIT_S = 120.0


class PullTimes(NamedTuple):
    """Seconds of every pull, and the bytes that the puller's memory grew by at most during one of them."""

    node: list[float]
    single: list[float]
    chunked: list[float]
    growth_bytes: int


class _PullPlan(NamedTuple):
    """What both processes know."""

    address: str
    plain_address: str
    nbytes: int
    times: int


def measure_pulls(nbytes: int, times: int) -> PullTimes:
    """So many pulls each way, after one that does not count."""
    plan = _PullPlan(free_loopback_address(), free_loopback_address(), nbytes, times + 1)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    puller = context.Process(target=_pull_all, args=(there, plan), daemon=True)
    puller.start()
    try:
        asyncio.run(_serve_node(plan))
        node, growth = _receive_times(here)
        with open_session(Endpoint(listen=(plan.plain_address,)), "router", 2 * nbytes) as session:
            here.send("listening")
            single = _serve_plain(session, here, plan, nbytes)
            chunked = _serve_plain(session, here, plan, CHUNK_BYTES)
    finally:
        puller.join(10)
        puller.kill()
        puller.join()
    return PullTimes(node[1:], single[1:], chunked[1:], int(growth[0]))


def _receive_times(pipe: Connection) -> list[list[float]]:
    if not pipe.poll(_WAIT_S):
        raise TimeoutError(f"not a word from the puller for {_WAIT_S:g} s")
    found: list[list[float]] = pipe.recv()
    return found


async def _serve_node(plan: _PullPlan) -> None:
    payload = Payload(plan.nbytes, (np.ones(plan.nbytes, np.uint8),))

    async def answer_pulls(node: Node) -> None:
        while (envelope := await node.receive(node.now() + _WAIT_S)) is not None:
            match envelope.message:
                case Joined(device=device):
                    node.send(device, Released(0))
                case Pull(turn=turn):
                    node.send(envelope.sender, Segment(payload, turn=turn, first=0, last=0))
                case Stop():
                    return

    await run_coordinator(
        Endpoint(listen=(plan.address,)), run=RunInfo(run="bench", job="", limit_bytes=2 * plan.nbytes), seed=0,
        journal=Journal(), coordinate=answer_pulls, welcome=lambda hello: hello.name,
    )  # fmt: skip


def _serve_plain(session: zenoh.Session, pipe: Connection, plan: _PullPlan, put_bytes: int) -> list[float]:
    """Put the bytes whenever the puller asks for them; its seconds."""
    data = bytes(plan.nbytes)
    pieces = [data[start : start + put_bytes] for start in range(0, len(data), put_bytes)]
    for _ in range(plan.times):
        _receive_times(pipe)
        for piece in pieces:
            session.put(_KEY, piece, congestion_control=zenoh.CongestionControl.BLOCK)
    return _receive_times(pipe)[0]


# --- the puller -----------------------------------------------------------------------------------------------------


def _pull_all(pipe: Connection, plan: _PullPlan) -> None:
    """The main of the puller's process."""
    seconds: list[float] = []
    growth = MemoryGrowth()

    async def pull_as_device(node: Node, welcome: JoinAccepted) -> None:
        await node.receive()
        for turn in range(plan.times):
            growth.begin_span()
            began = time.perf_counter()
            await node.send(COORDINATOR, Pull(turn, 0, 0))
            await node.receive()
            seconds.append(time.perf_counter() - began)
            growth.end_span()
        await node.send(COORDINATOR, Stop())
        await node.receive()

    asyncio.run(
        run_device(
            Endpoint(connect=(plan.address,)), hello=JoinRequest(name="puller"), take_part=pull_as_device, once=True
        )
    )
    pipe.send([seconds, [growth.most_bytes]])
    pipe.recv()
    with open_session(Endpoint(connect=(plan.plain_address,)), "client", 2 * plan.nbytes) as session:
        subscriber = session.declare_subscriber(_KEY)
        time.sleep(0.5)  # until the router knows of it
        for _ in range(2):
            pipe.send([[_pull_plain(pipe, subscriber, plan.nbytes) for _ in range(plan.times)]])


def _pull_plain(
    pipe: Connection, subscriber: zenoh.Subscriber[zenoh.handlers.Handler[zenoh.Sample]], nbytes: int
) -> float:
    began, came = time.perf_counter(), 0
    pipe.send([])
    while came < nbytes:
        came += len(subscriber.recv().payload.to_bytes())
    return time.perf_counter() - began


_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


class MemoryGrowth:
    """The most of several stretches; on Linux each has a peak of its own, elsewhere only what tops all before shows."""

    def __init__(self) -> None:
        self.most_bytes = 0
        self._before = 0

    def begin_span(self) -> None:
        try:
            _RESET.write_text(_RESET_PEAK)
            self._before = _status_bytes("VmRSS")
        except OSError:
            self._before = _peak_bytes()

    def end_span(self) -> None:
        self.most_bytes = max(self.most_bytes, _peak_bytes() - self._before)


def _peak_bytes() -> int:
    try:
        return _status_bytes("VmHWM")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{_STATUS} does not say {name}")
    return int(found[1]) * 1024

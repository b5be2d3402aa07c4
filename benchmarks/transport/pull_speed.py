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
from potluck.run.live_addresses import free_loopback_address
from potluck.worker_pool import exit_when_closed
from potluck.worlds.live.coordinator_runtime import AdmissionHooks, CoordinatedRun, run_coordinator
from potluck.worlds.live.device_runtime import DeviceOptions, run_device
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRequest, RunInfo
from potluck.worlds.live.link_shaping import CHUNK_BYTES
from potluck.worlds.live.zenoh_session import Endpoint, open_session

__all__ = ["CHUNK_BYTES", "MemoryGrowth", "PullTimes", "measure_pulls"]

_KEY = "potluck/bench/plain"
_WAIT_S = 120.0


class PullTimes(NamedTuple):
    """Seconds of every pull, and the largest growth of the puller's memory during one of them."""

    node: list[float]
    single: list[float]
    chunked: list[float]
    growth_bytes: int


class _PullPlan(NamedTuple):
    """What both processes need to know."""

    address: str
    plain_address: str
    nbytes: int
    times: int


def measure_pulls(nbytes: int, times: int) -> PullTimes:
    """Measure this many pulls of each kind, after one for warm-up."""
    plan = _PullPlan(free_loopback_address(), free_loopback_address(), nbytes, times + 1)
    context = multiprocessing.get_context("spawn")
    pipe, puller_end = context.Pipe()
    watched, lifeline = context.Pipe(duplex=False)
    puller = context.Process(target=_pull_all, args=(puller_end, watched, plan), daemon=True)
    puller.start()
    try:
        asyncio.run(_serve_node(plan))
        node, growth = _receive_times(pipe)
        with open_session(Endpoint(listen=(plan.plain_address,)), "router", 2 * nbytes) as session:
            pipe.send("listening")
            single = _serve_plain(session, pipe, plan, nbytes)
            chunked = _serve_plain(session, pipe, plan, CHUNK_BYTES)
    finally:
        puller.join(10)
        puller.kill()
        puller.join()
        lifeline.close()
    return PullTimes(node[1:], single[1:], chunked[1:], int(growth[0]))


def _receive_times(pipe: Connection) -> list[list[float]]:
    if not pipe.poll(_WAIT_S):
        raise TimeoutError(f"no message from the puller within {_WAIT_S:g} s")
    times: list[list[float]] = pipe.recv()
    return times


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
        Endpoint(listen=(plan.address,)),
        CoordinatedRun(info=RunInfo(run="bench", job="", limit_bytes=2 * plan.nbytes), seed=0, journal=Journal()),
        answer_pulls,
        AdmissionHooks(check=lambda request: request.name),
    )


def _serve_plain(session: zenoh.Session, pipe: Connection, plan: _PullPlan, put_bytes: int) -> list[float]:
    """Put the bytes whenever the puller asks for them; return its seconds."""
    data = bytes(plan.nbytes)
    chunks = [data[start : start + put_bytes] for start in range(0, len(data), put_bytes)]
    for _ in range(plan.times):
        _receive_times(pipe)
        for chunk in chunks:
            session.put(_KEY, chunk, congestion_control=zenoh.CongestionControl.BLOCK)
    return _receive_times(pipe)[0]


# --- the puller -----------------------------------------------------------------------------------------------------


def _pull_all(pipe: Connection, watched: Connection, plan: _PullPlan) -> None:
    """The main function of the puller's process."""
    exit_when_closed(watched)
    seconds: list[float] = []
    growth = MemoryGrowth()

    async def pull_as_device(node: Node, accepted: JoinAccepted) -> None:
        await node.receive()
        for turn in range(plan.times):
            growth.begin_span()
            start = time.perf_counter()
            await node.send(COORDINATOR, Pull(turn, 0, 0))
            await node.receive()
            seconds.append(time.perf_counter() - start)
            growth.end_span()
        await node.send(COORDINATOR, Stop())
        await node.receive()

    asyncio.run(
        run_device(
            Endpoint(connect=(plan.address,)), JoinRequest(name="puller"), pull_as_device, DeviceOptions(once=True)
        )
    )
    pipe.send([seconds, [growth.most_bytes]])
    pipe.recv()
    with open_session(Endpoint(connect=(plan.plain_address,)), "client", 2 * plan.nbytes) as session:
        subscriber = session.declare_subscriber(_KEY)
        time.sleep(0.5)  # until the router knows the subscriber
        for _ in range(2):
            pipe.send([[_pull_plain(pipe, subscriber, plan.nbytes) for _ in range(plan.times)]])


def _pull_plain(
    pipe: Connection, subscriber: zenoh.Subscriber[zenoh.handlers.Handler[zenoh.Sample]], nbytes: int
) -> float:
    start, received = time.perf_counter(), 0
    pipe.send([])
    while received < nbytes:
        received += len(subscriber.recv().payload.to_bytes())
    return time.perf_counter() - start


_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


class MemoryGrowth:
    """The largest growth of this process's memory over several spans.

    On Linux each span has its own peak; elsewhere a span counts only if it exceeds all earlier ones.
    """

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
    match = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    if match is None:
        raise OSError(f"{_STATUS} has no line {name}")
    return int(match[1]) * 1024

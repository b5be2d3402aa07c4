"""A peer that takes no more bytes must not hold up the others, not even through the coordinator that relays to it."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from potluck.worlds.live.zenoh_session import Endpoint, open_session
from potluck.worlds.live.zenoh_transport import ZenohTransport
from tests.worlds.live.live_fleet import free_address
from tests.worlds.live.processes import start

LEASE = 5.0
CHUNK = bytes(1 << 20)
CHUNKS = 24  # more than all buffers on the way hold


def _receive_until_killed(address: str) -> None:
    transport = ZenohTransport(open_session(Endpoint(connect=(address,), lease=LEASE), "client"), "era", "frozen")
    transport.subscribe_inbox(
        lambda sender, frame: transport.send_control(sender, frame), lambda *_: None, lambda *_: None, lambda *_: True
    )
    time.sleep(60)


def test_heartbeats_pass_a_peer_that_is_sent_more_than_it_takes() -> None:
    address = free_address()
    router = open_session(Endpoint(listen=(address,), lease=LEASE), "router")
    session = open_session(Endpoint(connect=(address,), lease=LEASE), "client")
    coordinator, device = ZenohTransport(router, "era", "coordinator"), ZenohTransport(session, "era", "device")
    heard_at: list[float] = []
    answered = threading.Event()
    coordinator.subscribe_inbox(
        lambda *_: heard_at.append(time.monotonic()), lambda *_: None, lambda *_: None, lambda *_: True
    )
    device.subscribe_inbox(lambda *_: answered.set(), lambda *_: None, lambda *_: None, lambda *_: True)
    frozen = start(_receive_until_killed, address)
    try:
        deadline = time.monotonic() + 30
        while not answered.wait(0.1):
            assert time.monotonic() < deadline, "the other device never answered"
            device.send_control_now("frozen", b"hello")
        assert frozen.pid is not None
        os.kill(frozen.pid, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            putting = pool.submit(device._put_blocking, "frozen", [lambda: (CHUNK, None)] * CHUNKS)
            heard_at.append(time.monotonic())
            while not putting.done():
                device.send_control_now("coordinator", b"heartbeat")
                time.sleep(0.05)
            putting.result()
        time.sleep(0.2)
        gaps = [later - earlier for earlier, later in pairwise(heard_at)]
        assert max(gaps) < LEASE / 2, "the coordinator would take the device for lost"
    finally:
        frozen.kill()
        for transport in (coordinator, device):
            transport.close()
        for each in (session, router):
            each.close()  # type: ignore[no-untyped-call]

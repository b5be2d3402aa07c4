"""Expelled means cut off: frames dropped, the connection closed, one line in the log, and everybody else goes on."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time

import pytest
import zenoh

from potluck.journal import Journal
from potluck.loops.messages import Joined
from potluck.loops.node import Node
from potluck.worlds.live import handshake_messages, key_expressions, wire_format
from potluck.worlds.live.control_messages import DeviceHeartbeat
from potluck.worlds.live.coordinator_runtime import AdmissionHooks, CoordinatedRun, run_coordinator
from potluck.worlds.live.device_runtime import DeviceOptions, run_device
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRequest
from potluck.worlds.live.zenoh_session import Endpoint, open_session
from tests.worlds.live.live_fleet import free_address
from tests.worlds.live.processes import echo, run_info

FLOOD_S = 6.0  # at most: it ends once it was cut off


class HostileDevice(threading.Thread):
    """Joins, then sends as many frames as it can for a while."""

    def __init__(self, address: str, kind: str) -> None:
        super().__init__(name="hostile")
        self._address = address
        self._kind = kind
        self.sent = 0
        self.disconnected = False
        self.start()

    def run(self) -> None:
        with open_session(Endpoint(connect=(self._address,)), "client") as session:
            accepted = self._join(session)
            clock_key = key_expressions.clock_key(accepted.era, accepted.name)
            with session.declare_querier(clock_key, timeout=5.0) as querier:
                list(querier.get(source_info=zenoh.SourceInfo(querier.id, 0)))
            address = session.info.links()[0].src
            key = key_expressions.lane_key(accepted.era, "hostile", "coordinator", key_expressions.CONTROL)
            frame = wire_format.encode_frame(accepted.incarnation, 0, DeviceHeartbeat(False))
            until = time.monotonic() + FLOOD_S
            while time.monotonic() < until and not self.disconnected:
                for _ in range(100):
                    session.put(key, os.urandom(32) if self._kind == "garbage" else frame)
                self.sent += 100
                self.disconnected |= address not in [link.src for link in session.info.links()]

    def _join(self, session: zenoh.Session) -> JoinAccepted:
        payload = handshake_messages.encode_handshake(JoinRequest(name="hostile", body="b"))
        for reply in session.get(key_expressions.admission_key("hostile"), payload=payload, timeout=5.0):
            assert reply.ok is not None
            answer = handshake_messages.decode_join_answer(reply.ok.payload.to_bytes())
            assert isinstance(answer, JoinAccepted)
            return answer
        raise AssertionError("no answer")


async def _run_beside(kind: str) -> tuple[HostileDevice, int, float]:
    """A run beside a hostile device: also returns the honest one's incarnation and the event loop's longest pause."""
    address = free_address()
    pauses = [0.0]
    hostile: list[HostileDevice] = []

    async def coordinate(node: Node) -> int:
        envelope = await node.receive()
        assert envelope is not None
        assert isinstance(envelope.message, Joined)
        hostile.append(HostileDevice(address, kind))
        while hostile[0].is_alive():
            before = time.monotonic()
            await asyncio.sleep(0.01)
            pauses.append(time.monotonic() - before)
        return envelope.message.incarnation

    coordinator = run_coordinator(
        Endpoint(listen=(address,), lease=2.0),
        CoordinatedRun(info=run_info(2.0), seed=0, journal=Journal()),
        coordinate,
        AdmissionHooks(check=lambda request: request.name),
    )
    device = asyncio.create_task(
        run_device(Endpoint(connect=(address,)), JoinRequest(name="honest"), echo, DeviceOptions(once=True))
    )
    incarnation = await coordinator
    await device
    return hostile[0], incarnation, max(pauses)


@pytest.mark.wall_clock
@pytest.mark.parametrize("kind", ["garbage", "heartbeats"])
def test_a_flood_is_cut_off_and_hardly_logged(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "potluck")
    hostile, incarnation, longest_pause_s = asyncio.run(_run_beside(kind))
    assert hostile.sent > 500, "this is no flood"
    lines = [record.getMessage() for record in caplog.records if "hostile" in record.getMessage()]
    assert len([line for line in lines if "joined" not in line and "lost" not in line]) <= 4, lines
    assert hostile.disconnected, "its connection was not closed"
    assert incarnation == 1, "the honest device was lost"
    assert longest_pause_s < 1.0, "the event loop stood still"

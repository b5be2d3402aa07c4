"""A device that floods the coordinator, as a process: `python hostile_device.py ADDRESS NAME TOKEN KIND SECONDS`.

It joins as any device does, then sends at full rate, and joins again whenever it was cut off.

KIND is `garbage` (bytes that are no frame), `heartbeats` (valid frames) or `joins` (join requests without end).
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Iterator

import zenoh

from potluck.worlds.live import handshake_messages, key_expressions, wire_format
from potluck.worlds.live.control_messages import DeviceHeartbeat
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRequest
from potluck.worlds.live.zenoh_session import Endpoint, EndpointError, open_session

__all__ = ["flood_coordinator"]

_FRAMES_PER_CHECK = 500


def flood_coordinator(address: str, name: str, token: str, kind: str, seconds: float) -> None:
    """Flood for so long; prints what was sent and how often it was admitted whenever that changes."""
    until, sent, admissions = time.monotonic() + seconds, 0, 0
    while time.monotonic() < until:
        try:
            session = open_session(Endpoint(connect=(address,)), "client")
        except EndpointError:
            continue
        with session:
            accepted = _join(session, name, token)
            if accepted is None:
                time.sleep(0.1)
                continue
            admissions += 1
            for count in _flood(session, accepted, kind, until):
                sent += count
                print(json.dumps({"sent": sent, "admissions": admissions}), flush=True)


def _join(session: zenoh.Session, name: str, token: str) -> JoinAccepted | None:
    request = JoinRequest(name=name, token=token, body=secrets.token_hex(16))
    payload = handshake_messages.encode_handshake(request)
    for reply in session.get(key_expressions.admission_key(name), payload=payload, timeout=2.0):
        if reply.ok is not None:
            answer = handshake_messages.decode_join_answer(reply.ok.payload.to_bytes())
            if isinstance(answer, JoinAccepted):
                return answer
    return None


def _flood(session: zenoh.Session, accepted: JoinAccepted, kind: str, until: float) -> Iterator[int]:
    """Send until the connection is gone; yields how many frames."""
    key = f"potluck/{accepted.era}/from/{accepted.name}/to/coordinator/control"
    frame = wire_format.encode_frame(accepted.incarnation, 0, DeviceHeartbeat(True))
    if kind == "garbage":
        frame = os.urandom(64)
    if kind == "joins":
        key = key_expressions.admission_key(accepted.name)
    else:  # it has to be known by its session to be cut off without a certificate, too
        with session.declare_querier(key_expressions.clock_key(accepted.era, accepted.name), timeout=2.0) as querier:
            list(querier.get(source_info=zenoh.SourceInfo(querier.id, 0)))
    while time.monotonic() < until and session.info.links():
        for _ in range(_FRAMES_PER_CHECK):
            if kind == "joins":
                session.get(key, lambda reply: None, payload=frame, timeout=1.0)
            else:
                session.put(key, frame, congestion_control=zenoh.CongestionControl.BLOCK)
        yield _FRAMES_PER_CHECK


if __name__ == "__main__":
    _address, _name, _token, _kind, _seconds = sys.argv[1:]
    _address = _address if "/" in _address else f"tcp/{_address}"
    flood_coordinator(_address, _name, _token, _kind, float(_seconds))

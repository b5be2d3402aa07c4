"""Watches the listener of the coordinator's Zenoh session, and diverts new connections while it does not keep up."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import zenoh
from zenoh.handlers import Callback

from potluck.worlds.live.connections.own_sockets import find_listener
from potluck.worlds.live.connections.shared_port import SharedPort, count_connections, is_supported
from potluck.worlds.live.repeated_log import RepeatedLog
from potluck.worlds.live.zenoh_session import Endpoint, open_session_in_thread

__all__ = ["ConnectionLimiter", "open_limited_session"]

_BACKENDS = 32  # of Zenoh's listeners on loopback; a failed handshake keeps one of them from accepting for 100 ms
_SAMPLE_S = 0.05
_STALLED_SAMPLES = 2  # in a row with connections that wait to be accepted
_MAX_PENDING = 64  # connections that Zenoh has accepted and has no link for
_CALM_S, _CALM_REFUSALS = 10.0, 50  # back to Zenoh after so long with at most so many refusals
_MIN_LIFE_S = 1.0  # of a proxy; one that dies sooner is started again only after this time
_STOP_TIMEOUT_S = 2.0
_PACKAGE_ROOT = Path(__file__).parents[4]

_log = logging.getLogger("potluck")


async def open_limited_session(endpoint: Endpoint) -> tuple[zenoh.Session, ConnectionLimiter | None]:
    """Open the coordinator's session, whose connections are limited if the endpoint says so and the system can."""
    if not endpoint.limit_connections or not is_supported():
        return await open_session_in_thread(endpoint, "router"), None
    locators = (*endpoint.listen, *_loopback_locators(endpoint.listen[0].partition("/")[0]))
    session = await open_session_in_thread(msgspec.structs.replace(endpoint, listen=locators), "router")
    return session, ConnectionLimiter(session, locators)


def _loopback_locators(protocol: str) -> tuple[str, ...]:
    """Where Zenoh can listen besides the public port, for connections that the proxy forwards."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(_BACKENDS)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return tuple(f"{protocol}/127.0.0.1:{probe.getsockname()[1]}" for probe in probes)


class ConnectionLimiter:
    """Limits the connections to the first of `locators`; the others are Zenoh's listeners on loopback."""

    def __init__(self, session: zenoh.Session, locators: tuple[str, ...]) -> None:
        self._session = session
        self._tls = locators[0].startswith("tls/")
        public, *self._backends = [_port_of(locator) for locator in locators]
        listener = find_listener(public)
        assert listener is not None, f"Zenoh does not listen on port {public}"
        self._port = SharedPort(listener)
        self._addresses: dict[int, str] = {}  # the proxy's port towards Zenoh → the address of the peer
        self._refusal_log = RepeatedLog(_log.warning)
        self._refused: deque[tuple[float, int]] = deque()  # when, how many
        self._lock = threading.Lock()  # guards `_control`, which any thread writes to
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._diverting, self._calm_since = False, 0.0
        self._closed = threading.Event()
        session.info.declare_link_events_listener(Callback(self._on_link_event, indirect=False), history=False)
        self._watcher = threading.Thread(target=self._watch_listener, name="potluck-listener", daemon=True)
        self._watcher.start()

    def public_address(self, address: str) -> str:
        """The peer behind an address that Zenoh reports for a link (HOST:PORT)."""
        host, _, port = address.rpartition(":")
        if host != "127.0.0.1" or not port.isdecimal():
            return address
        return self._addresses.get(int(port), address)

    def close(self) -> None:
        """Give the port back and end the process; what it forwards is cut off."""
        self._closed.set()
        self._watcher.join(_STOP_TIMEOUT_S)
        with self._lock:
            if self._control is not None:
                with contextlib.suppress(OSError):
                    self._control.shutdown(socket.SHUT_RDWR)
        if self._process is not None:
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._port.close()

    # --- watching --------------------------------------------------------------------------------------------------

    def _watch_listener(self) -> None:
        stalled = 0
        while not self._closed.wait(_SAMPLE_S):
            stalled = stalled + 1 if self._port.waiting_connections() > 0 else 0
            overloaded = stalled >= _STALLED_SAMPLES or self._pending_connections() > _MAX_PENDING
            now = time.monotonic()
            while self._refused and self._refused[0][0] < now - _CALM_S:
                self._refused.popleft()
            if overloaded or sum(count for _, count in self._refused) > _CALM_REFUSALS:
                self._calm_since = now
            if overloaded and not self._diverting:
                self._divert()
            elif self._diverting and now - self._calm_since > _CALM_S:
                self._diverting = False
                self._port.divert(to_ours=False)
                self._tell({"drain": False})
                _log.info("new connections go to Zenoh directly again")

    def _pending_connections(self) -> int:
        """Connections on the public port that Zenoh has no link for."""
        connections = count_connections(self._port.number)
        if connections <= _MAX_PENDING:
            return connections
        suffix = f":{self._port.number}"
        return connections - sum(link.src.endswith(suffix) for link in self._session.info.links())

    def _divert(self) -> None:
        try:
            self._port.open_ours()
            if self._process is None:
                threading.Thread(target=self._run_proxy, name="potluck-connections", daemon=True).start()
            self._port.divert(to_ours=True)
        except OSError as error:
            self._refusal_log.add("divert", f"connections cannot be limited: {error}")
            return
        self._diverting, self._calm_since = True, time.monotonic()
        self._tell({"drain": True})
        _log.warning("too many connections fail or stay silent; new ones are inspected before they reach Zenoh")

    # --- the proxy's process ---------------------------------------------------------------------------------------

    def _run_proxy(self) -> None:
        """Keep a proxy running; our socket stays open, so that connections wait while there is none."""
        while not self._closed.is_set():
            started = time.monotonic()
            try:
                self._serve_control(self._start_proxy())
            except OSError as error:
                _log.warning("the connection proxy cannot be started: %s", error)
            self._addresses.clear()
            if not self._closed.is_set():
                _log.warning("the connection proxy has ended; it is started again, and devices reconnect")
                self._closed.wait(max(0.0, _MIN_LIFE_S - (time.monotonic() - started)))

    def _start_proxy(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        options = {
            "public": self._port.open_ours().fileno(),
            "zenohs": self._port.zenohs.fileno(),
            "control": theirs.fileno(),
            "backends": self._backends,
            "tls": self._tls,
        }
        path = os.pathsep.join(filter(None, (str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH"))))
        with theirs, self._lock:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "potluck.worlds.live.connections.connection_proxy", json.dumps(options)],
                pass_fds=[self._port.open_ours().fileno(), self._port.zenohs.fileno(), theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )
            self._control = ours
            if self._closed.is_set():
                ours.shutdown(socket.SHUT_RDWR)
        self._tell({"drain": self._diverting})
        return ours

    def _serve_control(self, control: socket.socket) -> None:
        with control, control.makefile("rb") as lines:
            for line in lines:
                self._handle_message(json.loads(line))
            with self._lock:
                self._control = None
        if self._process is not None:
            self._process.wait()

    def _handle_message(self, message: dict[str, Any]) -> None:
        match message:
            case {"connected": port, "address": address}:
                self._addresses[port] = address
            case {"closed": port}:
                self._addresses.pop(port, None)
            case {"refused": source, "reason": reason, "count": count}:
                self._refused.append((time.monotonic(), count))
                self._refusal_log.add(source, f"refused connections from {source}: {reason}", count)

    def _on_link_event(self, event: zenoh.LinkEvent) -> None:
        """Tell the proxy that a handshake has succeeded; called from one of Zenoh's threads."""
        if event.kind == zenoh.SampleKind.PUT:
            self._tell({"establish": _port_of(event.link.dst)})

    def _tell(self, message: dict[str, Any]) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._control is not None:
                self._control.sendall(json.dumps(message).encode() + b"\n")


def _port_of(locator: str) -> int:
    return int(locator.rpartition(":")[2].partition("?")[0].partition("#")[0])

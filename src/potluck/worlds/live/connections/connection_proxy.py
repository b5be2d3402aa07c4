"""The process that accepts, inspects and forwards connections while Zenoh's own listener does not keep up.

    accepted ──▶ inspected ──▶ handshake ──▶ established
              first bytes    forwarded to   Zenoh has a link: no limit any more
              are those of   one of Zenoh's
              a device       listeners

It is started by `connection_limiter.py` and talks to it over a socket, in lines of JSON; it ends when that closes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from potluck.worlds.live.connections.first_bytes import PEEK_BYTES, FirstBytes, classify_first_bytes
from potluck.worlds.live.connections.pending_connections import PendingConnections, source_of
from potluck.worlds.live.connections.stream_pump import PipePool, StreamPump
from potluck.worlds.live.rate_limits import RateLimit, RateLimiter

__all__ = ["ConnectionProxy", "ProxyOptions"]

_INSPECTION_S = 5.0  # until the first message must have arrived
_HANDSHAKE_S = 15.0  # until Zenoh must have a link; longer than its own timeout
_MAX_INSPECTED, _MAX_INSPECTED_PER_SOURCE = 512, 256
_MAX_HANDSHAKES, _MAX_HANDSHAKES_PER_SOURCE = 256, 128
_HANDSHAKES = RateLimit(per_s=240.0, burst=240.0)  # of one source; 32 listeners of Zenoh manage 266
_ZENOH_PAUSE_S = 0.12  # after a failed handshake a listener of Zenoh accepts nothing for 100 ms
_TICK_S = 0.25
_ACCEPTS_PER_TURN = 64
_EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET


class ProxyOptions(NamedTuple):
    """What the process is started with; sockets are numbers of inherited descriptors."""

    public: int
    zenohs: int  # Zenoh's own socket on the public port: what it has not accepted yet can be accepted here
    control: int
    backends: list[int]  # ports on loopback where Zenoh listens
    tls: bool


@dataclass(eq=False)
class _Backend:
    """One of Zenoh's listeners."""

    port: int
    paused_until: float = 0.0
    handshakes: int = 0


@dataclass(eq=False)
class _Connection:
    client: socket.socket
    address: str
    source: str
    deadline: float
    server: socket.socket | None = None  # towards Zenoh, once the first bytes are known to be a device's
    backend: _Backend | None = None
    port: int = 0  # the connection's own port towards Zenoh, by which both sides of the control socket call it
    connected: bool = False
    established: bool = False
    pumps: list[StreamPump] = field(default_factory=list)


class ConnectionProxy:
    """Accepts, inspects and forwards connections until the control socket closes."""

    def __init__(self, options: ProxyOptions) -> None:
        self._tls = options.tls
        self._backends = [_Backend(port) for port in options.backends]
        self._public = {fd: socket.socket(fileno=fd) for fd in (options.public, options.zenohs)}
        self._zenohs = self._public[options.zenohs]
        self._draining = False
        self._control = socket.socket(fileno=options.control)
        self._control_in, self._control_out = b"", bytearray()
        self._epoll = select.epoll()
        self._connections: dict[int, _Connection] = {}  # by both descriptors
        self._by_port: dict[int, _Connection] = {}
        self._inspected = PendingConnections(_MAX_INSPECTED, _MAX_INSPECTED_PER_SOURCE)
        self._handshakes = PendingConnections(_MAX_HANDSHAKES, _MAX_HANDSHAKES_PER_SOURCE)
        self._waiting: dict[_Connection, None] = {}  # not yet established, oldest first
        self._limiter = RateLimiter(_HANDSHAKES)
        self._busy: dict[_Connection, None] = {}  # have more bytes to move
        self._refused: Counter[tuple[str, str]] = Counter()
        self._pipes = PipePool()
        self._running = True

    def run(self) -> None:
        for fd in self._public.keys() - {self._zenohs.fileno()} | {self._control.fileno()}:
            os.set_blocking(fd, False)
            self._epoll.register(fd, select.EPOLLIN)
        next_tick = time.monotonic() + _TICK_S
        while self._running:
            for fd, events in self._epoll.poll(0 if self._busy else _TICK_S):
                self._handle_event(fd, events)
            for connection in list(self._busy):
                self._move_bytes(connection)
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + _TICK_S
                self._close_overdue()
                self._report_refusals()

    def _handle_event(self, fd: int, events: int) -> None:
        if fd in self._public:
            self._accept_connections(self._public[fd])
        elif fd == self._control.fileno():
            self._read_control()
        elif (connection := self._connections.get(fd)) is not None:
            if connection.server is None:
                self._inspect(connection)
                return
            if fd == connection.server.fileno() and events & select.EPOLLOUT:
                connection.connected = True
            if connection.connected or events & (select.EPOLLERR | select.EPOLLHUP):
                self._move_bytes(connection)

    # --- before the handshake --------------------------------------------------------------------------------------

    def _accept_connections(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                client, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    self._close_oldest()
                    return
                continue
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            source, deadline = source_of(address[0]), time.monotonic() + _INSPECTION_S
            connection = _Connection(client, _format_address(address), source, deadline)
            self._connections[client.fileno()] = connection
            self._waiting[connection] = None
            evicted = self._inspected.add(source, client.fileno())
            if evicted is not None:
                self._refuse(self._connections[evicted], "too many connections that send nothing")
            if connection in self._waiting:
                self._epoll.register(client, _EVENTS)
                self._inspect(connection)

    def _inspect(self, connection: _Connection) -> None:
        try:
            data = connection.client.recv(PEEK_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)
            return
        verdict = classify_first_bytes(data, self._tls) if data else FirstBytes.INVALID
        if verdict is FirstBytes.INVALID:
            what = "a TLS handshake" if self._tls else "a Zenoh session"
            self._refuse(connection, f"not {what}")
        elif verdict is FirstBytes.VALID:
            if self._limiter.take(connection.source, time.monotonic()):
                self._forward(connection)
            else:
                self._refuse(connection, f"more than {_HANDSHAKES.per_s:g} handshakes a second")

    def _forward(self, connection: _Connection) -> None:
        """Connect to the listener of Zenoh that is most likely to accept at once."""
        now, client = time.monotonic(), connection.client
        backend = min(self._backends, key=lambda one: (max(one.paused_until, now), one.handshakes))
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        result = server.connect_ex(("127.0.0.1", backend.port))
        if result not in (0, errno.EINPROGRESS):
            server.close()
            self._refuse(connection, f"Zenoh does not accept it: {os.strerror(result)}")
            return
        connection.server, connection.backend, connection.port = server, backend, server.getsockname()[1]
        connection.deadline = now + _HANDSHAKE_S
        connection.pumps = [
            StreamPump(client.fileno(), server.fileno(), self._pipes),
            StreamPump(server.fileno(), client.fileno(), self._pipes),
        ]
        backend.handshakes += 1
        self._waiting[connection] = self._waiting.pop(connection)  # the last one to be overdue
        self._inspected.discard(connection.source, client.fileno())
        self._connections[server.fileno()] = connection
        self._by_port[connection.port] = connection
        self._tell({"connected": connection.port, "address": connection.address})
        self._epoll.register(server, _EVENTS)
        evicted = self._handshakes.add(connection.source, client.fileno())
        if evicted is not None:
            self._refuse(self._connections[evicted], "too many unfinished handshakes")

    # --- from the handshake on -------------------------------------------------------------------------------------

    def _move_bytes(self, connection: _Connection) -> None:
        self._busy.pop(connection, None)
        assert connection.server is not None
        try:
            has_more = [pump.move_bytes() for pump in connection.pumps]
        except OSError:
            self._close(connection)
            return
        if any(has_more):
            self._busy[connection] = None
        finished = [pump.is_finished for pump in connection.pumps]
        if all(finished) or (any(finished) and not connection.established):
            self._close(connection)
            return
        for is_finished, target in zip(finished, (connection.server, connection.client), strict=True):
            if is_finished:
                with contextlib.suppress(OSError):
                    target.shutdown(socket.SHUT_WR)

    def _end_handshake(self, connection: _Connection) -> None:
        self._waiting.pop(connection, None)
        self._handshakes.discard(connection.source, connection.client.fileno())
        if connection.backend is not None:
            connection.backend.handshakes -= 1
            if not connection.established:
                connection.backend.paused_until = (
                    max(connection.backend.paused_until, time.monotonic()) + _ZENOH_PAUSE_S
                )

    # --- closing ---------------------------------------------------------------------------------------------------

    def _refuse(self, connection: _Connection, reason: str) -> None:
        self._refused[connection.source, reason] += 1
        self._close(connection)

    def _close(self, connection: _Connection) -> None:
        if connection.client.fileno() < 0:
            return
        if not connection.established:
            self._end_handshake(connection)
        self._inspected.discard(connection.source, connection.client.fileno())
        self._busy.pop(connection, None)
        for pump in connection.pumps:
            pump.close()
        for end in (connection.client, connection.server):
            if end is not None:
                del self._connections[end.fileno()]
                end.close()
        if connection.server is not None:
            self._by_port.pop(connection.port, None)
            self._tell({"closed": connection.port})

    def _close_overdue(self) -> None:
        now = time.monotonic()
        for connection in list(self._waiting):
            if connection.deadline <= now:
                inspected = connection.server is None
                self._refuse(connection, "sent nothing" if inspected else "the handshake was not finished")

    def _close_oldest(self) -> None:
        """Free a descriptor: there are none left."""
        for connection in list(self._waiting)[:1]:
            self._refuse(connection, "too many connections")

    # --- the coordinator -------------------------------------------------------------------------------------------

    def _read_control(self) -> None:
        try:
            data = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._running = bool(data)
        *lines, self._control_in = (self._control_in + data).split(b"\n")
        for line in lines:
            match json.loads(line):
                case {"establish": port} if port in self._by_port and not self._by_port[port].established:
                    self._by_port[port].established = True
                    self._end_handshake(self._by_port[port])
                case {"drain": bool(drain)} if drain != self._draining:
                    self._draining = drain
                    if drain:
                        self._epoll.register(self._zenohs, select.EPOLLIN)
                    else:
                        self._epoll.unregister(self._zenohs)

    def _report_refusals(self) -> None:
        for (source, reason), count in self._refused.items():
            self._tell({"refused": source, "reason": reason, "count": count})
        self._refused.clear()
        self._tell(None)

    def _tell(self, message: dict[str, Any] | None) -> None:
        """Send a line; what the socket does not take now is sent with the next one."""
        if message is not None:
            self._control_out += json.dumps(message).encode() + b"\n"
        if self._control_out:
            with contextlib.suppress(OSError):
                del self._control_out[: self._control.send(self._control_out)]


def _format_address(address: tuple[Any, ...]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def main() -> None:
    """Run the process; its only argument is ProxyOptions as JSON."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with the coordinator, not before
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ConnectionProxy(ProxyOptions(**json.loads(sys.argv[1]))).run()


if __name__ == "__main__":
    main()

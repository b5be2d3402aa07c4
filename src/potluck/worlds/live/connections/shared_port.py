"""Two listening sockets on one port: Zenoh's, and ours that can take over new connections (Linux).

Zenoh's socket is in this process, so its options can be set; that does not concern Zenoh, nor connections that exist.
The kernel asks a one-line filter which of the two gets a new connection; if ours is closed, Zenoh's gets all of them.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
from pathlib import Path

__all__ = ["SharedPort", "count_connections", "is_supported"]

_ATTACH_REUSEPORT_CBPF = 51  # SO_ATTACH_REUSEPORT_CBPF, which Python does not name
_RETURN = 0x06  # BPF_RET | BPF_K
_ZENOHS, _OURS = 0, 1  # positions in the group: the order in which the sockets came to it
_BACKLOG = 1024
_TCP_INFO_UNACKED = 24  # offset in tcp_info; of a listening socket, the connections that wait to be accepted
_ESTABLISHED, _CLOSE_WAIT = b"01", b"08"


def is_supported() -> bool:
    """Whether the system has what the package needs."""
    return hasattr(select, "epoll") and hasattr(os, "splice")


class SharedPort:
    """A port that Zenoh listens on, and that a socket of ours can share."""

    def __init__(self, zenohs: socket.socket) -> None:
        self.zenohs = zenohs
        self.number: int = zenohs.getsockname()[1]
        self.ours: socket.socket | None = None

    def waiting_connections(self) -> int:
        """How many connections Zenoh has not accepted yet."""
        info = self.zenohs.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_UNACKED + 4)
        return int(struct.unpack_from("I", info, _TCP_INFO_UNACKED)[0])

    def open_ours(self) -> socket.socket:
        """Open our socket on the port; new connections go on to Zenoh's."""
        if self.ours is None:
            self.zenohs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            ours = socket.socket(self.zenohs.family, socket.SOCK_STREAM)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            ours.bind(self.zenohs.getsockname())
            ours.listen(_BACKLOG)
            self.ours = ours
        return self.ours

    def divert(self, to_ours: bool) -> None:
        """Choose which socket gets new connections."""
        instruction = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, _OURS if to_ours else _ZENOHS))
        program = struct.pack("HP", 1, ctypes.addressof(instruction))
        self.zenohs.setsockopt(socket.SOL_SOCKET, _ATTACH_REUSEPORT_CBPF, program)

    def close(self) -> None:
        """Give the port back to Zenoh alone."""
        if self.ours is not None:
            self.ours.close()
        self.zenohs.close()


def count_connections(port: int) -> int:
    """How many connections of this host have `port` on its side, established or closed only by the peer."""
    suffix, count = b":%04X" % port, 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_bytes().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            _, local, _, state, *_ = row.split(None, 4)
            count += local.endswith(suffix) and state in (_ESTABLISHED, _CLOSE_WAIT)
    return count

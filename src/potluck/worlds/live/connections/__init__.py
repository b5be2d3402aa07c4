"""Limits connections before they reach Zenoh, whose listener accepts nothing for 100 ms after each failed handshake.

Normally Zenoh accepts on the public port itself, and nothing stands between it and the devices. When its listener does
not keep up, the kernel hands new connections to a small process instead, which lets through what looks like a device;
connections that exist already are not touched. Linux only.

    connection_limiter.py  watches Zenoh's listener, diverts new connections to the proxy and back
      shared_port.py         two listening sockets on one port, and which of them gets new connections (SO_REUSEPORT)
      connection_proxy.py    the process: forwards connections to Zenoh's other listeners, on loopback
        first_bytes.py         a ClientHello, or Zenoh's own first message? else closed at once
        ..rate_limits.py       so many handshakes a second and address
        pending_connections.py so many unfinished ones: the oldest of the busiest address is closed
        stream_pump.py         moves the bytes inside the kernel
"""

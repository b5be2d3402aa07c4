"""A real MQTT broker for tests, in a subprocess on a free loopback port, removed without a trace afterwards."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

__all__ = ["MOSQUITTO", "Mosquitto"]

MOSQUITTO = shutil.which("mosquitto", path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin")


class Mosquitto:
    """A broker that can be killed and restarted on the same port."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._settings = folder / "mosquitto.conf"
        self._settings.write_text(f"listener {self.port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 100000\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert MOSQUITTO is not None
        self._process = subprocess.Popen(
            [MOSQUITTO, "-c", str(self._settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 10
        while not self._answers():
            assert time.monotonic() < deadline, "mosquitto does not start"
            assert self._process.poll() is None, "mosquitto ended at once"
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 0.2).close()
        except OSError:
            return False
        return True

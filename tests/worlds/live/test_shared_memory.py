"""Processes that exchanged messages through shared memory leave no files in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import process_resources
from tests.time_limits import within
from tests.worlds.live.live_fleet import free_address

_SUBSCRIBER = """
import sys
from potluck.worlds.live.zenoh_session import Endpoint, open_session

with open_session(Endpoint(listen=(sys.argv[1],), shared_memory=True), "router") as session:
    heard = session.declare_subscriber("potluck/test")
    print("listening", flush=True)
    assert all(len(heard.recv().payload.to_bytes()) == 1 << 20 for _ in range(40))
    print("heard", flush=True)
    sys.stdin.readline()
sys.exit(sys.stdin.readline().strip() or None)
"""
_PUBLISHER = """
import sys, time, zenoh
from potluck.worlds.live.zenoh_session import Endpoint, open_session

with open_session(Endpoint(connect=(sys.argv[1],), shared_memory=True), "client") as session:
    saying = session.declare_publisher("potluck/test", congestion_control=zenoh.CongestionControl.BLOCK)
    while not saying.matching_status.matching:
        time.sleep(0.01)
    for _ in range(40):
        saying.put(bytes(1 << 20))
    print("said", flush=True)
    sys.stdin.readline()
sys.exit(sys.stdin.readline().strip() or None)
"""


class _Process(subprocess.Popen[str]):
    def __init__(self, script: str, address: str) -> None:
        super().__init__(
            [sys.executable, "-c", script, address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def says(self) -> str:
        assert self.stdout is not None
        return self.stdout.readline().strip()

    def end(self, error: str) -> int:
        """Let it close its session and end, with an error if there is one."""
        self.communicate(f"\n{error}\n", 20)
        return self.returncode


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs /dev/shm")
@pytest.mark.parametrize("error", ["", "burnt"], ids=["in order", "by an error"])
def test_the_last_process_removes_the_segments(error: str) -> None:
    address, processes = free_address(), list[_Process]()
    try:
        with within(60):
            processes.append(subscriber := _Process(_SUBSCRIBER, address))
            assert subscriber.says() == "listening"
            processes.append(publisher := _Process(_PUBLISHER, address))
            assert (publisher.says(), subscriber.says()) == ("said", "heard")
        files = process_resources.shared_memory(subscriber.pid) | process_resources.shared_memory(publisher.pid)
        assert files, "nothing went through shared memory"
        assert [process.end(error) for process in processes] == [int(bool(error))] * 2
        assert not [path for path in files if path.exists()]
    finally:
        for process in processes:
            process.kill()
            process.wait()

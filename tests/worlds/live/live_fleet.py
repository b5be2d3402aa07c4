"""A fleet of live nodes in this process, each with its own session and event loop, that follows the fault script."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from potluck import seeds
from potluck.fleet import Fleet, fleet_changes
from potluck.journal import Journal, JournalRecord
from potluck.loops.node import Node
from potluck.worlds.live.coordinator_runtime import AdmissionHooks, CoordinatedRun, run_coordinator
from potluck.worlds.live.device_runtime import DeviceOptions, run_device
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRequest, RunInfo
from potluck.worlds.live.start_condition import StartCondition
from potluck.worlds.live.zenoh_session import Endpoint
from tests.worlds.conformance import Ended

Main = Callable[[Node], Coroutine[Any, Any, Any]]


def free_address() -> str:
    """A locator that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp/127.0.0.1:{probe.getsockname()[1]}"


class RecordingJournal(Journal):
    """A journal that keeps its records."""

    def __init__(self) -> None:
        super().__init__(None)
        self.records: list[JournalRecord] = []

    def write_record(self, record: JournalRecord) -> None:
        self.records.append(record)


class DeviceThread:
    """A device: a thread with an event loop, as a process would have."""

    def __init__(self, endpoint: Endpoint, name: str, main: Main, fleet: Fleet) -> None:
        self._arguments = (endpoint, name, main, fleet)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[str] | None = None
        self._ready = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run_loop, name=f"device-{name}")
        self._thread.start()

    def end(self) -> None:
        """Cancel it wherever it is."""
        self._ready.wait()
        assert self._loop is not None
        assert self._task is not None
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._task.cancel)

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive(), "a device does not end"

    def _run_loop(self) -> None:
        try:
            asyncio.run(self._run_device())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self.error = error

    async def _run_device(self) -> None:
        endpoint, name, main, fleet = self._arguments
        self._loop = asyncio.get_running_loop()

        async def device_main(node: Node, accepted: JoinAccepted) -> None:
            await main(node)

        self._task = asyncio.create_task(
            run_device(
                endpoint,
                JoinRequest(name=name),
                device_main,
                DeviceOptions(once=True, load_fleet=lambda accepted: fleet),
            )
        )
        self._ready.set()
        await self._task


class LiveFleet:
    """Runs a coordinator and its devices until the coordinator's main returns."""

    def __init__(self, fleet: Fleet, device: Main, seed: int) -> None:
        self._fleet = fleet
        self._device = device
        self._seed = seed
        address = free_address()
        lease = float(fleet.lease)
        self._coordinator_endpoint = Endpoint(listen=(address,), lease=lease)
        self._device_endpoint = Endpoint(connect=(address,), lease=lease)
        self._threads: dict[str, DeviceThread] = {}
        self._stopped: list[DeviceThread] = []

    def run(self, coordinator: Main) -> Ended:
        journal = RecordingJournal()
        try:
            result = asyncio.run(self._coordinate(coordinator, journal))
        finally:
            for device in (*self._threads.values(), *self._stopped):
                device.end()
            for device in (*self._threads.values(), *self._stopped):
                device.join()
        errors = [device.error for device in (*self._threads.values(), *self._stopped) if device.error is not None]
        assert not errors, errors
        return Ended(result, journal.records)

    async def _coordinate(self, coordinator: Main, journal: Journal) -> Any:
        changes, absent = fleet_changes(self._fleet, lambda name: seeds.child_generator(self._seed, "fleet", name))
        first = [device.name for device in self._fleet.members if device.name not in absent]
        for name in first:
            self._start(name)

        async def coordinate(node: Node) -> Any:
            script = asyncio.create_task(self._follow_script(changes, node))
            try:
                return await coordinator(node)
            finally:
                script.cancel()

        return await run_coordinator(
            self._coordinator_endpoint,
            CoordinatedRun(
                info=RunInfo(run="test", job="", lease=float(self._fleet.lease), limit_bytes=1 << 26),
                seed=self._seed,
                journal=journal,
                fleet=self._fleet,
            ),
            coordinate,
            AdmissionHooks(check=lambda request: request.name),
            StartCondition(devices=first, timeout_s=10),
        )

    async def _follow_script(self, changes: Any, node: Node) -> None:
        for change in changes:
            await asyncio.sleep(change.at - node.now())
            if change.what in ("crash", "leave"):
                self._end(change.device)
            elif change.what == "start":
                self._start(change.device)

    def _start(self, name: str) -> None:
        if name not in self._threads:
            self._threads[name] = DeviceThread(self._device_endpoint, name, self._device, self._fleet)

    def _end(self, name: str) -> None:
        device = self._threads.pop(name, None)
        if device is not None:
            self._stopped.append(device)
            device.end()


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> float:
    """Wait until the condition holds and return how long it took; TimeoutError if it does not."""
    started_at = time.monotonic()
    while not condition():
        if time.monotonic() - started_at > seconds:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.005)
    return time.monotonic() - started_at

"""The simulated world: devices and links in virtual time, computing real gradients.

    fleet's script ──▶ SimulatedWorld ──▶ starts and kills devices, cuts links, reports joined and lost devices
    SimulatedNode ───▶ SimulatedWorld ──▶ SimulatedNetwork (bytes) · SpeedCurve (speed) · ComputePool (real functions)

An incarnation of a device is one task that runs the device's main. A crash cancels the task and drops everything the
device had in flight; the next incarnation is a new node with an empty inbox. To resume a run at a later instant, the
world first replays its script without starting any main.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import numpy as np

from potluck import seeds
from potluck.fleet import Device, Fleet, FleetChange, device_speed, fleet_changes
from potluck.fleet.speed_curve import SpeedCurve
from potluck.journal import Instant, Journal
from potluck.loops.messages import Joined, Lost, Message
from potluck.loops.node import COORDINATOR, Envelope, MeasuredTransfer, Node
from potluck.worlds.device_error import DeviceError
from potluck.worlds.simulated.compute_pool import ComputePool
from potluck.worlds.simulated.simulated_machine import SimulatedMachine, SimulatedSendFuture
from potluck.worlds.simulated.simulated_network import SimulatedChannel, SimulatedNetwork
from potluck.worlds.simulated.simulated_node import SimulatedNode

__all__ = ["SimulatedWorld"]

Main = Callable[[Node], Coroutine[Any, Any, Any]]


class SimulatedWorld:
    """Runs one fleet in virtual time."""

    def __init__(self, fleet: Fleet, seed: int, journal: Journal, pool: ComputePool) -> None:
        self.fleet = fleet
        self.seed = seed
        self.journal = journal
        self.pool = pool
        self.network = SimulatedNetwork()
        self._coordinator = SimulatedMachine(
            0, COORDINATOR, fleet.coordinator.resolved_link, lambda: SpeedCurve(iter([(math.inf, 1.0)]))
        )
        self._machines = {
            device.name: SimulatedMachine(index, device.name, device.link, partial(self._make_speed_curve, device))
            for index, device in enumerate(fleet.members, 1)
        }
        self._machines[COORDINATOR] = self._coordinator
        self._device_main: Main | None = None
        self.loop: asyncio.AbstractEventLoop
        self._error: DeviceError | None = None

    def rng(self, *name: object) -> np.random.Generator:
        return seeds.child_generator(self.seed, *name)

    async def run(self, coordinator: Main, device: Main, start: float = 0.0) -> Any:
        """Run coordinator and devices from `start` until the coordinator's main returns; return its result."""
        self.loop = asyncio.get_running_loop()
        self._start_script()
        if start > 0:
            await asyncio.sleep(start)
        self._device_main = device
        self._coordinator.node = SimulatedNode(self, self._coordinator, 0)
        self._coordinator.is_up = True
        for machine in self._machines.values():
            if machine.known_incarnation:
                self._deliver_event(self._coordinator, Joined(machine.name, machine.known_incarnation))
        main = asyncio.ensure_future(coordinator(self._coordinator.node))
        self._coordinator.node.task = main
        try:
            return await main
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            raise

    # --- the fleet's script ----------------------------------------------------------------------------------------

    def _make_speed_curve(self, device: Device) -> SpeedCurve:
        return SpeedCurve(device_speed(self.fleet, device, self._fleet_rng))

    def _fleet_rng(self, name: str) -> np.random.Generator:
        return self.rng("fleet", name)

    def _start_script(self) -> None:
        changes, absent = fleet_changes(self.fleet, self._fleet_rng)
        for machine in self._machines.values():
            if machine is not self._coordinator and machine.name not in absent:
                self._start_device(machine)
        self._schedule_change(changes)

    def _schedule_change(self, changes: Iterator[FleetChange]) -> None:
        change = next(changes, None)
        if change is not None:
            asyncio.get_running_loop().call_at(change.at, self._apply_change, change, changes)

    def _apply_change(self, change: FleetChange, changes: Iterator[FleetChange]) -> None:
        machine = self._machines[change.device]
        if self._device_main is not None and change.what:
            self.journal.write_record(Instant(machine.name, change.what, change.at, {"value": change.value}))
        match change.what:
            case "crash":
                self._stop_device(machine, "crashed", self.fleet.notice)
            case "leave":
                self._stop_device(machine, "left", 0.0)
            case "start":
                self._start_device(machine)
            case "link":
                self._cut_link(machine) if change.value == 0 else self._restore_link(machine)
            case "lose":
                _change_loss(machine.loss_fractions, change.value)
            case "bandwidth":
                self.network.resize_pipe(machine.up, machine.link.up * change.value)
                self.network.resize_pipe(machine.down, machine.link.down * change.value)
        self._schedule_change(changes)

    def _start_device(self, machine: SimulatedMachine) -> None:
        if machine.is_up:
            return
        machine.is_up = True
        machine.incarnation += 1
        if machine.is_reachable:
            self._announce_device(machine)

    def _start_main(self, machine: SimulatedMachine) -> SimulatedNode:
        """Start a device's main with its first message: until then it would only wait for one."""
        assert self._device_main is not None
        machine.node = node = SimulatedNode(self, machine, machine.incarnation)
        node.task = asyncio.ensure_future(self._device_main(node))
        node.task.add_done_callback(lambda task: self._on_device_done(machine.name, task))
        return node

    def _on_device_done(self, device: str, task: asyncio.Task[Any]) -> None:
        """End the run if a device's code raised: the same would happen on every device."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self._error is None:
            self._error = DeviceError.from_exception(device, error)
            assert self._coordinator.node is not None
            self._coordinator.node.cancel_main()

    def _stop_device(self, machine: SimulatedMachine, reason: str, notice: float) -> None:
        if not machine.is_up:
            return
        machine.is_up = False
        if machine.node is not None:
            machine.node.cancel_main()
            machine.node = None
        self._drop_connections(machine)
        if machine.is_reachable:  # otherwise the coordinator notices when the lease expires
            self._call_later(notice, self._report_lost, machine, machine.incarnation, reason)

    def _cut_link(self, machine: SimulatedMachine) -> None:
        machine.active_partitions += 1
        if machine.active_partitions > 1:
            return
        machine.partition_count += 1
        self._drop_connections(machine)
        self._call_later(self.fleet.lease, self._expire_lease, machine, machine.partition_count)

    def _restore_link(self, machine: SimulatedMachine) -> None:
        machine.active_partitions -= 1
        if machine.active_partitions > 0:
            return
        if machine.is_up and machine.known_incarnation != machine.incarnation:
            self._announce_device(machine)
        elif not machine.is_up:
            self._call_later(self.fleet.notice, self._report_lost, machine, machine.incarnation, "gone")

    def _expire_lease(self, machine: SimulatedMachine, partition: int) -> None:
        """The lease has expired: each side considers the other lost."""
        if not machine.is_reachable and machine.partition_count == partition:
            self._report_lost(machine, machine.known_incarnation, "silent for longer than the lease")
            self._deliver_event(machine, Lost(COORDINATOR, 0, "silent for longer than the lease"))

    def _report_lost(self, machine: SimulatedMachine, incarnation: int, reason: str) -> None:
        if machine.known_incarnation and machine.known_incarnation == incarnation:
            machine.known_incarnation = 0
            self._deliver_event(self._coordinator, Lost(machine.name, incarnation, reason))

    def _announce_device(self, machine: SimulatedMachine) -> None:
        self._report_lost(machine, machine.known_incarnation, "restarted")  # if the end of the last one went unnoticed
        machine.known_incarnation = machine.incarnation
        self._deliver_event(self._coordinator, Joined(machine.name, machine.incarnation))

    def _deliver_event(self, machine: SimulatedMachine, event: Message) -> None:
        if machine.node is not None:
            machine.node.deliver(Envelope(COORDINATOR, 0, event))

    def _drop_connections(self, machine: SimulatedMachine) -> None:
        for channels in machine.channels.values():
            for channel in channels:
                channel.drop_transfers()

    def _call_later(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        self.loop.call_at(self.loop.time() + delay, action, *args)

    # --- messages --------------------------------------------------------------------------------------------------

    def send_message(self, node: SimulatedNode, to: str, message: Message) -> asyncio.Future[None] | None:
        """Send a message; the future (None for a small message) is done when the link has taken the last byte."""
        origin, target = node.machine, self._machines[to]
        if not (origin.is_reachable and target.is_reachable):
            return None
        envelope = Envelope(origin.name, node.incarnation, message)
        latency = origin.link.latency + target.link.latency
        if not message.bulky:
            latency += message.nbytes / min(origin.link.up, target.link.down)
            self._call_later(latency, self._deliver_message, origin, target, target.incarnation, envelope)
            return None
        return self._start_transfer(origin, target, envelope, latency)

    def _start_transfer(
        self, origin: SimulatedMachine, target: SimulatedMachine, envelope: Envelope, latency: float
    ) -> asyncio.Future[None]:
        incarnation, nbytes = target.incarnation, envelope.message.nbytes
        future = SimulatedSendFuture(loop=asyncio.get_running_loop())

        def on_sent(completed: bool) -> None:
            transfer, future.transfer = future.transfer, None  # breaks a reference cycle that holds the payload
            if not future.done():
                future.set_result(None)
            if completed:
                assert transfer is not None
                measured = MeasuredTransfer(nbytes, self.loop.time() - transfer.started_at, transfer.channel.overhead)
                arriving = envelope._replace(transfer=measured)
                self._call_later(latency, self._deliver_message, origin, target, incarnation, arriving)

        future.transfer = self._channel_between(origin, target).queue_transfer(nbytes, on_sent)
        return future

    def _channel_between(self, origin: SimulatedMachine, target: SimulatedMachine) -> SimulatedChannel:
        if target.name not in origin.channels:
            overhead = origin.link.overhead + target.link.overhead
            out = SimulatedChannel(self.network, self._channel_key(origin, target), origin.up, target.down, overhead)
            back = SimulatedChannel(self.network, self._channel_key(target, origin), target.up, origin.down, overhead)
            origin.channels[target.name] = (out, back)
            target.channels[origin.name] = (back, out)
        return origin.channels[target.name][0]

    def _channel_key(self, origin: SimulatedMachine, target: SimulatedMachine) -> int:
        return origin.index * len(self._machines) + target.index

    def _deliver_message(
        self, origin: SimulatedMachine, target: SimulatedMachine, incarnation: int, envelope: Envelope
    ) -> None:
        """Deliver, unless an endpoint has restarted or stopped, a link is cut or the message is lost."""
        if not target.is_up or target.incarnation != incarnation:
            return
        if (
            not (origin.is_up and origin.is_reachable and target.is_reachable)
            or origin.incarnation != envelope.incarnation
        ):
            return
        fractions = (*origin.loss_fractions, *target.loss_fractions)
        if not any(
            self._is_lost(cause, fraction, origin, target, envelope) for cause, fraction in enumerate(fractions)
        ):
            (target.node or self._start_main(target)).deliver(envelope)

    def _is_lost(
        self, cause: int, fraction: float, origin: SimulatedMachine, target: SimulatedMachine, envelope: Envelope
    ) -> bool:
        """Drawn from the time and the message, not from a sequence, so that a resumed run draws the same."""
        message, moment = envelope.message, asyncio.get_running_loop().time()
        what = (type(message).__name__, getattr(message, "turn", 0), getattr(message, "first", 0))
        draw = seeds.child_seed(self.seed, "loss", origin.name, target.name, moment, *what, cause)
        return draw < fraction * 2**63


def _change_loss(fractions: list[float], change: float) -> None:
    """A positive change adds a cause of loss; its negative removes it."""
    if change > 0:
        fractions.append(change)
    else:
        fractions.remove(-change)

"""The simulated world: devices and links that exist in virtual time only, doing real mathematics.

    fleet's script ──▶ World ──▶ starts and kills devices, cuts links, tells each side who came and who is gone
    Node ───────────▶ World ──▶ Network (bytes) · Curve (speed) · Pool (the real functions) · Journal

A device's life is one task that runs the device's main; a crash cancels it where it stands, and with it goes all that
it had on the wire. Its next life is a new Node with a higher incarnation and an empty mailbox. To take a run up again
at a later instant, the world first lives through its script with nobody in it.
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
from potluck.journal import Instant, Journal
from potluck.loops.messages import Joined, Lost, Message
from potluck.loops.node import COORDINATOR, Envelope, Node
from potluck.worlds.device_error import DeviceError
from potluck.worlds.simulated.compute_pool import ComputePool
from potluck.worlds.simulated.simulated_machine import SimulatedMachine, SimulatedSendFuture
from potluck.worlds.simulated.simulated_network import SimulatedChannel, SimulatedNetwork
from potluck.worlds.simulated.simulated_node import SimulatedNode
from potluck.worlds.simulated.speed_curve import SpeedCurve

__all__ = ["SimulatedWorld"]

Main = Callable[[Node], Coroutine[Any, Any, Any]]


class SimulatedWorld:
    """One fleet in virtual time."""

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
        """Let everybody live from `start` until the coordinator's main returns; give back what it returns."""
        self.loop = asyncio.get_running_loop()
        self._start_script()
        if start > 0:
            await asyncio.sleep(start)
        self._device_main = device
        self._coordinator.node = SimulatedNode(self, self._coordinator, 0)
        self._coordinator.is_up = True
        for site in self._machines.values():
            if site.known_incarnation:
                self._deliver_event(self._coordinator, Joined(site.name, site.known_incarnation))
        main = asyncio.ensure_future(coordinator(self._coordinator.node))
        self._coordinator.node.task = main
        try:
            return await main
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            raise

    # --- what happens to the fleet ---------------------------------------------------------------------------------

    def _make_speed_curve(self, device: Device) -> SpeedCurve:
        return SpeedCurve(device_speed(self.fleet, device, self._fleet_rng))

    def _fleet_rng(self, name: str) -> np.random.Generator:
        return self.rng("fleet", name)

    def _start_script(self) -> None:
        changes, absent = fleet_changes(self.fleet, self._fleet_rng)
        for site in self._machines.values():
            if site is not self._coordinator and site.name not in absent:
                self._start_device(site)
        self._schedule_change(changes)

    def _schedule_change(self, changes: Iterator[FleetChange]) -> None:
        change = next(changes, None)
        if change is not None:
            asyncio.get_running_loop().call_at(change.at, self._apply_change, change, changes)

    def _apply_change(self, change: FleetChange, changes: Iterator[FleetChange]) -> None:
        site = self._machines[change.device]
        if self._device_main is not None and change.what:
            self.journal.write_record(Instant(site.name, change.what, change.at, {"value": change.value}))
        match change.what:
            case "crash":
                self._stop_device(site, "crashed", self.fleet.notice)
            case "leave":
                self._stop_device(site, "left", 0.0)
            case "start":
                self._start_device(site)
            case "link":
                self._cut_link(site) if change.value == 0 else self._restore_link(site)
            case "lose":
                site.loss_fractions.append(change.value) if change.value > 0 else site.loss_fractions.remove(
                    -change.value
                )
            case "bandwidth":
                self.network.resize_pipe(site.up, site.link.up * change.value)
                self.network.resize_pipe(site.down, site.link.down * change.value)
        self._schedule_change(changes)

    def _start_device(self, site: SimulatedMachine) -> None:
        if site.is_up:
            return
        site.is_up = True
        site.incarnation += 1
        if site.is_reachable:
            self._announce_device(site)

    def _start_main(self, site: SimulatedMachine) -> SimulatedNode:
        """Begin a device's life with its first message: until then its main would only wait for one."""
        assert self._device_main is not None
        site.node = node = SimulatedNode(self, site, site.incarnation)
        node.task = asyncio.ensure_future(self._device_main(node))
        node.task.add_done_callback(lambda task: self._on_device_done(site.name, task))
        return node

    def _on_device_done(self, device: str, task: asyncio.Task[Any]) -> None:
        """A device's code that raises ends the run, and its words are shown: the same would happen on every device."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self._error is None:
            self._error = DeviceError.from_exception(device, error)
            assert self._coordinator.node is not None
            self._coordinator.node.cancel_main()

    def _stop_device(self, site: SimulatedMachine, reason: str, notice: float) -> None:
        if not site.is_up:
            return
        site.is_up = False
        if site.node is not None:
            site.node.cancel_main()
            site.node = None
        self._drop_connections(site)
        if site.is_reachable:  # else the lease tells
            self._call_later(notice, self._report_lost, site, site.incarnation, reason)

    def _cut_link(self, site: SimulatedMachine) -> None:
        site.active_partitions += 1
        if site.active_partitions > 1:
            return
        site.partition_count += 1
        self._drop_connections(site)
        self._call_later(self.fleet.lease, self._expire_lease, site, site.partition_count)

    def _restore_link(self, site: SimulatedMachine) -> None:
        site.active_partitions -= 1
        if site.active_partitions > 0:
            return
        if site.is_up and site.known_incarnation != site.incarnation:
            self._announce_device(site)
        elif not site.is_up:
            self._call_later(self.fleet.notice, self._report_lost, site, site.incarnation, "gone")

    def _expire_lease(self, site: SimulatedMachine, cut: int) -> None:
        """The lease is over: either side takes the other for lost."""
        if not site.is_reachable and site.partition_count == cut:
            self._report_lost(site, site.known_incarnation, "silent for longer than the lease")
            self._deliver_event(site, Lost(COORDINATOR, 0, "silent for longer than the lease"))

    def _report_lost(self, site: SimulatedMachine, incarnation: int, reason: str) -> None:
        if site.known_incarnation and site.known_incarnation == incarnation:
            site.known_incarnation = 0
            self._deliver_event(self._coordinator, Lost(site.name, incarnation, reason))

    def _announce_device(self, site: SimulatedMachine) -> None:
        self._report_lost(
            site, site.known_incarnation, "restarted"
        )  # reborn before the end of its last life was noticed
        site.known_incarnation = site.incarnation
        self._deliver_event(self._coordinator, Joined(site.name, site.incarnation))

    def _deliver_event(self, site: SimulatedMachine, event: Message) -> None:
        if site.node is not None:
            site.node.deliver(Envelope(COORDINATOR, 0, event))

    def _drop_connections(self, site: SimulatedMachine) -> None:
        for channels in site.channels.values():
            for channel in channels:
                channel.drop_transfers()

    def _call_later(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        self.loop.call_at(self.loop.time() + delay, action, *args)

    # --- bytes -----------------------------------------------------------------------------------------------------

    def send_message(self, node: SimulatedNode, to: str, message: Message) -> asyncio.Future[None] | None:
        """Carry a message; the future (None for a small one) is done when the link has taken it."""
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
        incarnation = target.incarnation
        sending = SimulatedSendFuture(loop=asyncio.get_running_loop())

        def on_sent(whole: bool) -> None:
            sending.transfer = None  # they point at each other, and at the payload
            if not sending.done():
                sending.set_result(None)
            if whole:
                self._call_later(latency, self._deliver_message, origin, target, incarnation, envelope)

        sending.transfer = self._channel_between(origin, target).queue_transfer(envelope.message.nbytes, on_sent)
        return sending

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
        """Deliver, unless one of the two has died, the link is cut or the message is lost."""
        if not target.is_up or target.incarnation != incarnation:
            return
        if (
            not (origin.is_up and origin.is_reachable and target.is_reachable)
            or origin.incarnation != envelope.incarnation
        ):
            return
        shares = (*origin.loss_fractions, *target.loss_fractions)
        if not any(self._is_lost(cause, share, origin, target, envelope) for cause, share in enumerate(shares)):
            (target.node or self._start_main(target)).deliver(envelope)

    def _is_lost(
        self, cause: int, share: float, origin: SimulatedMachine, target: SimulatedMachine, envelope: Envelope
    ) -> bool:
        """Drawn from the moment and the message, not from a sequence, so that a resumed run draws alike."""
        message, moment = envelope.message, asyncio.get_running_loop().time()
        what = (type(message).__name__, getattr(message, "turn", 0), getattr(message, "first", 0))
        draw = seeds.child_seed(self.seed, "loss", origin.name, target.name, moment, *what, cause)
        return draw < share * 2**63

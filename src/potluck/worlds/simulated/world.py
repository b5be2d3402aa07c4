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
from potluck.fleet import Change, Device, Fleet, script, speed
from potluck.journal import Instant, Journal
from potluck.loops.messages import Joined, Lost, Message
from potluck.loops.node import COORDINATOR, Envelope, Node
from potluck.worlds.simulated.network import Channel, Network
from potluck.worlds.simulated.node import SimulatedNode
from potluck.worlds.simulated.pool import Pool
from potluck.worlds.simulated.site import Sending, Site
from potluck.worlds.simulated.speed import Curve

__all__ = ["DeviceError", "World"]

Main = Callable[[Node], Coroutine[Any, Any, Any]]


class DeviceError(Exception):
    """The code that a device runs (a model, a loss, a data set) raised."""

    def __init__(self, device: str, cause: BaseException) -> None:
        self.cause = cause
        super().__init__(f"{device}: {type(cause).__name__}: {cause}")


class World:
    """One fleet in virtual time."""

    def __init__(self, fleet: Fleet, seed: int, journal: Journal, pool: Pool) -> None:
        self.fleet = fleet
        self.seed = seed
        self.journal = journal
        self.pool = pool
        self.network = Network()
        self._centre = Site(0, COORDINATOR, fleet.coordinator.access, lambda: Curve(iter([(math.inf, 1.0)])))
        self._sites = {
            device.name: Site(index, device.name, device.link, partial(self._curve_of, device))
            for index, device in enumerate(fleet.members, 1)
        }
        self._sites[COORDINATOR] = self._centre
        self._device_main: Main | None = None
        self.loop: asyncio.AbstractEventLoop
        self._error: DeviceError | None = None

    def rng(self, *name: object) -> np.random.Generator:
        return seeds.generator(self.seed, *name)

    async def run(self, coordinator: Main, device: Main, start: float = 0.0) -> Any:
        """Let everybody live from `start` until the coordinator's main returns; give back what it returns."""
        self.loop = asyncio.get_running_loop()
        self._begin_script()
        if start > 0:
            await asyncio.sleep(start)
        self._device_main = device
        self._centre.node = SimulatedNode(self, self._centre, 0)
        self._centre.here = True
        for site in self._sites.values():
            if site.known:
                self._tell(self._centre, Joined(site.name, site.known))
        main = asyncio.ensure_future(coordinator(self._centre.node))
        self._centre.node.task = main
        try:
            return await main
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from self._error.cause
            raise

    # --- what happens to the fleet ---------------------------------------------------------------------------------

    def _curve_of(self, device: Device) -> Curve:
        return Curve(speed(self.fleet, device, self._fleet_rng))

    def _fleet_rng(self, name: str) -> np.random.Generator:
        return self.rng("fleet", name)

    def _begin_script(self) -> None:
        changes, absent = script(self.fleet, self._fleet_rng)
        for site in self._sites.values():
            if site is not self._centre and site.name not in absent:
                self._start(site)
        self._await_change(changes)

    def _await_change(self, changes: Iterator[Change]) -> None:
        change = next(changes, None)
        if change is not None:
            asyncio.get_running_loop().call_at(change.at, self._apply, change, changes)

    def _apply(self, change: Change, changes: Iterator[Change]) -> None:
        site = self._sites[change.device]
        if self._device_main is not None and change.what:
            self.journal.write(Instant(site.name, change.what, change.at, {"value": change.value}))
        match change.what:
            case "crash":
                self._end(site, "crashed", self.fleet.notice)
            case "leave":
                self._end(site, "left", 0.0)
            case "start":
                self._start(site)
            case "link":
                self._cut(site) if change.value == 0 else self._heal(site)
            case "lose":
                site.lose.append(change.value) if change.value > 0 else site.lose.remove(-change.value)
            case "bandwidth":
                self.network.resize(site.up, site.link.up * change.value)
                self.network.resize(site.down, site.link.down * change.value)
        self._await_change(changes)

    def _start(self, site: Site) -> None:
        if site.here:
            return
        site.here = True
        site.incarnation += 1
        if site.reachable:
            self._announce(site)

    def _live(self, site: Site) -> SimulatedNode:
        """Begin a device's life with its first message: until then its main would only wait for one."""
        assert self._device_main is not None
        site.node = node = SimulatedNode(self, site, site.incarnation)
        node.task = asyncio.ensure_future(self._device_main(node))
        node.task.add_done_callback(lambda task: self._notice_error(site.name, task))
        return node

    def _notice_error(self, device: str, task: asyncio.Task[Any]) -> None:
        """A device's code that raises ends the run, and its words are shown: the same would happen on every device."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self._error is None:
            self._error = DeviceError(device, error)
            assert self._centre.node is not None
            self._centre.node.end()

    def _end(self, site: Site, reason: str, notice: float) -> None:
        if not site.here:
            return
        site.here = False
        if site.node is not None:
            site.node.end()
            site.node = None
        self._break(site)
        if site.reachable:  # else the lease tells
            self._later(notice, self._miss, site, site.incarnation, reason)

    def _cut(self, site: Site) -> None:
        site.cuts += 1
        if site.cuts > 1:
            return
        site.cut += 1
        self._break(site)
        self._later(self.fleet.lease, self._expire, site, site.cut)

    def _heal(self, site: Site) -> None:
        site.cuts -= 1
        if site.cuts > 0:
            return
        if site.here and site.known != site.incarnation:
            self._announce(site)
        elif not site.here:
            self._later(self.fleet.notice, self._miss, site, site.incarnation, "gone")

    def _expire(self, site: Site, cut: int) -> None:
        """The lease is over: either side takes the other for lost."""
        if not site.reachable and site.cut == cut:
            self._miss(site, site.known, "silent for longer than the lease")
            self._tell(site, Lost(COORDINATOR, 0, "silent for longer than the lease"))

    def _miss(self, site: Site, incarnation: int, reason: str) -> None:
        if site.known and site.known == incarnation:
            site.known = 0
            self._tell(self._centre, Lost(site.name, incarnation, reason))

    def _announce(self, site: Site) -> None:
        self._miss(site, site.known, "restarted")  # reborn before the end of its last life was noticed
        site.known = site.incarnation
        self._tell(self._centre, Joined(site.name, site.incarnation))

    def _tell(self, site: Site, event: Message) -> None:
        if site.node is not None:
            site.node.deliver(Envelope(COORDINATOR, 0, event))

    def _break(self, site: Site) -> None:
        for channels in site.channels.values():
            for channel in channels:
                channel.drop()

    def _later(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        self.loop.call_at(self.loop.time() + delay, action, *args)

    # --- bytes -----------------------------------------------------------------------------------------------------

    def transmit(self, node: SimulatedNode, to: str, message: Message) -> asyncio.Future[None] | None:
        """Carry a message; the future (None for a small one) is done when the link has taken it."""
        origin, target = node.site, self._sites[to]
        if not (origin.reachable and target.reachable):
            return None
        envelope = Envelope(origin.name, node.incarnation, message)
        latency = origin.link.latency + target.link.latency
        if not message.bulky:
            latency += message.nbytes / min(origin.link.up, target.link.down)
            self._later(latency, self._arrive, origin, target, target.incarnation, envelope)
            return None
        return self._transfer(origin, target, envelope, latency)

    def _transfer(self, origin: Site, target: Site, envelope: Envelope, latency: float) -> asyncio.Future[None]:
        incarnation = target.incarnation
        sending = Sending(loop=asyncio.get_running_loop())

        def left(whole: bool) -> None:
            sending.transfer = None  # they point at each other, and at the payload
            if not sending.done():
                sending.set_result(None)
            if whole:
                self._later(latency, self._arrive, origin, target, incarnation, envelope)

        sending.transfer = self._channel(origin, target).put(envelope.message.nbytes, left)
        return sending

    def _channel(self, origin: Site, target: Site) -> Channel:
        if target.name not in origin.channels:
            overhead = origin.link.overhead + target.link.overhead
            out = Channel(self.network, self._key(origin, target), origin.up, target.down, overhead)
            back = Channel(self.network, self._key(target, origin), target.up, origin.down, overhead)
            origin.channels[target.name] = (out, back)
            target.channels[origin.name] = (back, out)
        return origin.channels[target.name][0]

    def _key(self, origin: Site, target: Site) -> int:
        return origin.index * len(self._sites) + target.index

    def _arrive(self, origin: Site, target: Site, incarnation: int, envelope: Envelope) -> None:
        """Deliver, unless one of the two has died, the link is cut or the message is lost."""
        if not target.here or target.incarnation != incarnation:
            return
        if not (origin.here and origin.reachable and target.reachable) or origin.incarnation != envelope.incarnation:
            return
        shares = (*origin.lose, *target.lose)
        if not any(self._is_lost(cause, share, origin, target, envelope) for cause, share in enumerate(shares)):
            (target.node or self._live(target)).deliver(envelope)

    def _is_lost(self, cause: int, share: float, origin: Site, target: Site, envelope: Envelope) -> bool:
        """Drawn from the moment and the message, not from a sequence, so that a resumed run draws alike."""
        message, moment = envelope.message, asyncio.get_running_loop().time()
        what = (type(message).__name__, getattr(message, "turn", 0), getattr(message, "first", 0))
        draw = seeds.child(self.seed, "loss", origin.name, target.name, moment, *what, cause)
        return draw < share * 2**63

"""Who should get which layers, from what is known of devices and links, and whether moving there pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from potluck.errors import UserError
from potluck.fleet import Device
from potluck.loops.pipeline.costs import ChainCosts
from potluck.planning.partition import Devices, Layers, Partition, ShortMemoryError, evaluate
from potluck.planning.redistribution import Layout, sources
from potluck.planning.schedule import Durations

if TYPE_CHECKING:
    from potluck.loops.pipeline.settings import Pipeline

__all__ = ["Plan", "Planner"]


@dataclass(frozen=True)
class Plan:
    """A layout: the device of each stage, its layers and how many batches it lets into flight."""

    cuts: tuple[int, ...]
    order: tuple[str, ...]
    layers: int
    windows: tuple[int, ...]
    period: float  # seconds between two batches, as forecast when it was made
    stride: int  # every how many batches a copy goes to the keeper
    keepers: tuple[str, ...] = ()  # who keeps each stage's copies; nobody but the coordinator where there is one stage

    @property
    def stages(self) -> tuple[range, ...]:
        return tuple(range(*ends) for ends in pairwise((0, *self.cuts, self.layers)))

    def same_as(self, other: Plan) -> bool:
        return (self.cuts, self.order) == (other.cuts, other.order)


class Planner:
    """Knows the fleet's figures and what was seen of its speeds."""

    def __init__(self, fleet: Sequence[Device], costs: ChainCosts, samples: int, settings: Pipeline) -> None:
        self._devices: Mapping[str, Device] = {device.name: device for device in fleet}
        self._costs = costs
        self._samples = samples
        self._settings = settings
        self._ahead: dict[frozenset[str], Plan] = {}
        self.slowness: dict[str, float] = {}  # measured over nominal seconds

    @property
    def layers(self) -> int:
        return self._costs.layers

    # --- plans -----------------------------------------------------------------------------------------------------

    def plan(self, candidates: Sequence[str]) -> Plan:
        """The layout over some of the candidates, of which the first holds the data; UserError if there is none."""
        names = tuple(candidates[: self._settings.schedule.most_stages])
        ready = self._ahead.get(frozenset(names))
        if ready is not None and ready.order[0] == names[0]:
            return ready
        try:
            found = self._settings.partition.plan(self._layers(names), self._facts(names))
        except ShortMemoryError as short:
            raise short.among(names) from None
        return self._of(found, names)

    def fixed(self, cuts: Sequence[int], order: Sequence[str]) -> Plan:
        """A layout that is given."""
        found = evaluate(cuts, range(len(order)), self._layers(order), self._facts(order))
        return self._of(found, order)

    def check_memory(self, candidates: Sequence[str]) -> None:
        """ShortMemoryError if the devices cannot hold the model in any layout; other troubles are told later."""
        try:
            self.plan(candidates)
        except UserError as error:
            if isinstance(error, ShortMemoryError):
                raise

    def foresee(self, candidates: Sequence[str], without_first: Sequence[str] = ()) -> None:
        """Work out the plan for each single death, so that it is there when it is needed.

        Should the first die, those who are left are led by another who holds the data, if there is one. Where too few
        would be left to hold the model, there is nothing to foresee.
        """
        self._ahead = {}
        lefts = [[name for name in candidates if name != lost] for lost in candidates[1:]]
        if without_first:
            lefts.append(list(without_first))
        ahead = {}
        for left in lefts:
            with suppress(UserError):
                ahead[frozenset(left)] = self.plan(left)
        self._ahead = ahead

    def forget(self) -> None:
        """What was foreseen does not hold any more."""
        self._ahead = {}

    def _of(self, found: Partition, names: Sequence[str]) -> Plan:
        order = tuple(names[place] for place in found.order)
        durations = self.durations(found.cuts, order)
        access = self._access(durations)
        windows = self._within_memory(found, names, self._settings.schedule.windows(durations, max(access)))
        period = max(self._settings.schedule.period(durations, windows), *access)
        plan = Plan(found.cuts, order, found.layers, windows, period, 0)
        return self._kept_by(plan, (*order[1:], order[0]) if len(order) > 1 else ())

    def _within_memory(self, found: Partition, names: Sequence[str], windows: Sequence[int]) -> tuple[int, ...]:
        """Windows that let in no more batches than each device can hold; none is wider than the one before it.

        The layout has room for those that the schedule needs at least; a window that fills idle time may ask for more.
        """
        layers, schedule, fitting = self._layers(names), self._settings.schedule, list[int]()
        for place, (window, stage, device) in enumerate(zip(windows, found.stages, found.order, strict=True)):
            to_end = len(windows) - place
            each = layers.memory(stage.start, stage.stop, to_end) / schedule.in_flight(to_end)
            room = self._devices[names[device]].memory // each if each else window
            fitting.append(int(min(window, max(room, 1), fitting[-1] if fitting else window)))
        return tuple(fitting)

    def place_copies(self, plan: Plan, candidates: Sequence[str]) -> Plan:
        """The same layout, copies being kept by who would take over, wherever that does not make them rarer."""
        if len(plan.order) == 1 or not self._settings.replication.by_steps:
            return plan
        for place in range(len(plan.order)):
            keepers = list(plan.keepers)
            keepers[place] = self._heir(plan, place, candidates)
            other = self._kept_by(plan, keepers)
            plan = other if other.stride <= plan.stride else plan
        return plan

    def _heir(self, plan: Plan, place: int, candidates: Sequence[str]) -> str:
        """Who would get most of a stage, should its device die."""
        ahead = self._ahead.get(frozenset(candidates) - {plan.order[place]})
        if ahead is None:
            return plan.keepers[place]
        inherits = {
            name: self._costs.state_bytes(min(both), max(both))
            for name, layers in zip(ahead.order, ahead.stages, strict=True)
            if (both := set(layers) & set(plan.stages[place]))
        }
        return max(inherits, key=lambda name: inherits[name])

    def _kept_by(self, plan: Plan, keepers: Sequence[str]) -> Plan:
        """With copies as often as all stages can send them in their own and their keepers' idle time."""
        access = dict(zip(plan.order, self._access(self.durations(plan.cuts, plan.order)), strict=True))
        strides = [
            self._stride(layers, name, keeper, plan.period - max(access[name], access.get(keeper, 0.0)))
            for layers, name, keeper in zip(plan.stages, plan.order, keepers or plan.order, strict=True)
        ]
        return replace(plan, stride=max(strides), keepers=tuple(keepers))

    def _access(self, durations: Durations) -> list[float]:
        """Seconds per batch for which each device's own link is busy: it shares it between its two neighbours."""
        parts = self._settings.schedule.parts
        down, up = (0.0, *durations.down, 0.0), (0.0, *durations.up, 0.0)
        return [
            parts * max(down[place + 1] + up[place], down[place] + up[place + 1]) for place in range(durations.stages)
        ]

    def _stride(self, layers: range, name: str, keeper: str, idle_s: float) -> int:
        replication, rate = self._settings.replication, self._rate(name, keeper)
        step, version = (
            self._costs.state_bytes(layers[0], layers[-1], moments) for moments in (False, replication.optimizer_state)
        )
        step = step if replication.by_steps and name != keeper else version
        return replication.stride(step / rate, version / rate, idle_s)

    # --- forecasts -------------------------------------------------------------------------------------------------

    def period(self, plan: Plan) -> float:
        """Seconds between two batches of a layout at the speeds that are known now."""
        durations = self.durations(plan.cuts, plan.order)
        return max(self._settings.schedule.period(durations, plan.windows), *self._access(durations))

    def durations(self, cuts: Sequence[int], order: Sequence[str]) -> Durations:
        """Seconds of each stage and of each transfer, for one part of a batch."""
        samples = self._samples / self._settings.schedule.parts
        runs = list(pairwise((0, *cuts, self._costs.layers)))
        pairs = list(zip(order, runs, strict=True))
        sizes = [self._costs.crossing_bytes[cut - 1] * samples for cut in cuts]
        links = list(zip(pairwise(order), sizes, strict=True))
        return Durations(
            [self._costs.forward(first, end - 1, 1) * samples / self.speed(name) for name, (first, end) in pairs],
            [self._costs.backward(first, end - 1, 1) * samples / self.speed(name) for name, (first, end) in pairs],
            [self.seconds(there, here, size) for (there, here), size in links],
            [self.seconds(here, there, size) for (there, here), size in links],
        )

    def migration(self, old: Plan, new: Plan) -> float:
        """About how many seconds go by between two layouts: the old one runs dry, layers travel, the new one fills."""
        places = {name: place for place, name in enumerate(dict.fromkeys((*old.order, *new.order)))}
        names = list(places)
        before = Layout(old.cuts, tuple(places[name] for name in old.order), old.layers)
        after = Layout(new.cuts, tuple(places[name] for name in new.order), new.layers)
        arriving: dict[str, float] = dict.fromkeys(names, 0.0)
        for layer, source, target in sources(before, (), after, replicas={}).fetches():
            size = self._costs.state_bytes(layer, layer)
            arriving[names[target]] += self.seconds(names[source], names[target], size)
        emptying = (len(old.order) + len(new.order) - 2) / 2
        return max(arriving.values()) + emptying * max(self.period(old), self.period(new))

    def speed(self, name: str) -> float:
        return self._devices[name].flops / self.slowness.get(name, 1.0)

    def nominal(self, name: str, first: int, last: int) -> float:
        """Seconds of a batch on some layers at the device's nominal speed."""
        return self._costs.both(first, last, self._samples) / self._devices[name].flops

    def seconds(self, sender: str, receiver: str, size: float) -> float:
        own, other = self._devices[sender].link, self._devices[receiver].link
        return float(size / min(own.up, other.down) + own.overhead + other.overhead)

    def _layers(self, names: Sequence[str]) -> Layers:
        """Times are those of the first device."""
        speed, costs = self.speed(names[0]), self._costs
        return Layers(
            times=[costs.both(layer, layer, self._samples) / speed for layer in range(costs.layers)],
            outputs=[size * self._samples for size in costs.crossing_bytes],
            weights=[costs.state_bytes(layer, layer) for layer in range(costs.layers)],
            activations=[size * self._samples for size in costs.activation_bytes],
            in_flight=self._settings.schedule.in_flight,
        )

    def _facts(self, names: Sequence[str]) -> Devices:
        """A link's two directions are counted one after the other: a device in the middle has one link for both sides,
        so what it sends on and what it sends back share it."""
        reference = self.speed(names[0])
        return Devices(
            capacities=[reference / self.speed(name) for name in names],
            bandwidth=lambda sender, receiver: self._rate(names[sender], names[receiver]),
            memory=[self._devices[name].memory for name in names],
            duplex=False,
        )

    def _rate(self, sender: str, receiver: str) -> float:
        return float(min(self._devices[sender].link.up, self._devices[receiver].link.down))

"""Who should get which layers, from what is known of devices and links, and whether moving there pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from potluck.errors import UserError
from potluck.fleet import Device
from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.planning.layer_redistribution import StageLayout, plan_redistribution
from potluck.planning.online_estimates import ChangeDetector
from potluck.planning.partition import DeviceSpecs, LayerSpecs, PipelinePartition, ShortMemoryError, evaluate_partition
from potluck.planning.schedule import StageDurations

if TYPE_CHECKING:
    from potluck.loops.pipeline.settings import Pipeline

__all__ = ["PipelinePlan", "PipelinePlanner"]

_SLOWNESS_GAIN = 0.3  # weight of the newest batch in the mean of a device's slowness


@dataclass(frozen=True)
class PipelinePlan:
    """A layout: the device of each stage, its layers and how many batches it lets into flight."""

    cuts: tuple[int, ...]
    order: tuple[str, ...]
    layers: int
    windows: tuple[int, ...]
    period: float  # seconds between two batches, as forecast when it was made
    stride: int  # every how many batches a copy goes to the keeper
    keepers: tuple[str, ...] = ()  # who keeps each stage's copies; nobody but the coordinator where there is one stage

    @property
    def stage_layers(self) -> tuple[range, ...]:
        return tuple(range(*ends) for ends in pairwise((0, *self.cuts, self.layers)))

    def has_same_layout(self, other: PipelinePlan) -> bool:
        return (self.cuts, self.order) == (other.cuts, other.order)


class PipelinePlanner:
    """Knows the fleet's figures and what was seen of its speeds."""

    def __init__(self, fleet: Sequence[Device], costs: PipelineCosts, samples: int, settings: Pipeline) -> None:
        self._devices: Mapping[str, Device] = {device.name: device for device in fleet}
        self._costs = costs
        self._batch_samples = samples
        self._settings = settings
        self._loss_plans: dict[frozenset[str], PipelinePlan] = {}
        self.slowness: dict[str, float] = {}  # measured over nominal seconds
        self._change_detectors: dict[str, ChangeDetector] = {}

    @property
    def layer_count(self) -> int:
        return self._costs.layer_count

    # --- plans -----------------------------------------------------------------------------------------------------

    def plan_layout(self, candidates: Sequence[str]) -> PipelinePlan:
        """The layout over some of the candidates, of which the first holds the data; UserError if there is none."""
        names = tuple(candidates[: self._settings.schedule.most_stages])
        ready = self._loss_plans.get(frozenset(names))
        if ready is not None and ready.order[0] == names[0]:
            return ready
        try:
            found = self._settings.partition.plan_partition(
                self._partition_layers(names), self._partition_devices(names)
            )
        except ShortMemoryError as short:
            raise short.with_device_name(names) from None
        return self._make_plan(found, names)

    def plan_fixed_layout(self, cuts: Sequence[int], order: Sequence[str]) -> PipelinePlan:
        """A layout that is given."""
        found = evaluate_partition(
            cuts, range(len(order)), self._partition_layers(order), self._partition_devices(order)
        )
        return self._make_plan(found, order)

    def check_memory(self, candidates: Sequence[str]) -> None:
        """ShortMemoryError if the devices cannot hold the model in any layout; other troubles are told later."""
        try:
            self.plan_layout(candidates)
        except UserError as error:
            if isinstance(error, ShortMemoryError):
                raise

    def plan_for_losses(self, candidates: Sequence[str], without_first: Sequence[str] = ()) -> None:
        """Work out the plan for each single death, so that it is there when it is needed.

        Should the first die, those who are left are led by another who holds the data, if there is one. Where too few
        would be left to hold the model, there is nothing to foresee.
        """
        self._loss_plans = {}
        lefts = [[name for name in candidates if name != lost] for lost in candidates[1:]]
        if without_first:
            lefts.append(list(without_first))
        ahead = {}
        for left in lefts:
            with suppress(UserError):
                ahead[frozenset(left)] = self.plan_layout(left)
        self._loss_plans = ahead

    def clear_loss_plans(self) -> None:
        """What was foreseen does not hold any more."""
        self._loss_plans = {}

    def _make_plan(self, found: PipelinePartition, names: Sequence[str]) -> PipelinePlan:
        order = tuple(names[place] for place in found.order)
        durations = self.stage_durations(found.cuts, order)
        access = self._link_busy_s(durations)
        windows = self._limit_windows(found, names, self._settings.schedule.stage_windows(durations, max(access)))
        period = max(self._settings.schedule.batch_period_s(durations, windows), *access)
        plan = PipelinePlan(found.cuts, order, found.layers, windows, period, 0)
        return self._with_keepers(plan, (*order[1:], order[0]) if len(order) > 1 else ())

    def _limit_windows(self, found: PipelinePartition, names: Sequence[str], windows: Sequence[int]) -> tuple[int, ...]:
        """Windows that let in no more batches than each device can hold; none is wider than the one before it.

        The layout has room for those that the schedule needs at least; a window that fills idle time may ask for more.
        """
        layers, schedule, fitting = self._partition_layers(names), self._settings.schedule, list[int]()
        for place, (window, stage, device) in enumerate(zip(windows, found.stages, found.order, strict=True)):
            to_end = len(windows) - place
            each = layers.run_bytes(stage.start, stage.stop, to_end) / schedule.batches_in_flight(to_end)
            room = self._devices[names[device]].memory // each if each else window
            fitting.append(int(min(window, max(room, 1), fitting[-1] if fitting else window)))
        return tuple(fitting)

    def place_copies(self, plan: PipelinePlan, candidates: Sequence[str]) -> PipelinePlan:
        """The same layout, copies being kept by who would take over, wherever that does not make them rarer."""
        if len(plan.order) == 1 or not self._settings.replication.sends_steps:
            return plan
        for place in range(len(plan.order)):
            keepers = list(plan.keepers)
            keepers[place] = self._successor_device(plan, place, candidates)
            other = self._with_keepers(plan, keepers)
            plan = other if other.stride <= plan.stride else plan
        return plan

    def _successor_device(self, plan: PipelinePlan, place: int, candidates: Sequence[str]) -> str:
        """Who would get most of a stage, should its device die."""
        ahead = self._loss_plans.get(frozenset(candidates) - {plan.order[place]})
        if ahead is None:
            return plan.keepers[place]
        inherits = {
            name: self._costs.state_bytes(min(both), max(both))
            for name, layers in zip(ahead.order, ahead.stage_layers, strict=True)
            if (both := set(layers) & set(plan.stage_layers[place]))
        }
        return max(inherits, key=lambda name: inherits[name])

    def _with_keepers(self, plan: PipelinePlan, keepers: Sequence[str]) -> PipelinePlan:
        """With copies as often as all stages can send them in their own and their keepers' idle time."""
        access = dict(zip(plan.order, self._link_busy_s(self.stage_durations(plan.cuts, plan.order)), strict=True))
        strides = [
            self._copy_stride(layers, name, keeper, plan.period - max(access[name], access.get(keeper, 0.0)))
            for layers, name, keeper in zip(plan.stage_layers, plan.order, keepers or plan.order, strict=True)
        ]
        return replace(plan, stride=max(strides), keepers=tuple(keepers))

    def _link_busy_s(self, durations: StageDurations) -> list[float]:
        """Seconds per batch for which each device's own link is busy: it shares it between its two neighbours."""
        parts = self._settings.schedule.micro_batch_count
        down, up = (0.0, *durations.down, 0.0), (0.0, *durations.up, 0.0)
        return [
            parts * max(down[place + 1] + up[place], down[place] + up[place + 1]) for place in range(durations.stages)
        ]

    def _copy_stride(self, layers: range, name: str, keeper: str, idle_s: float) -> int:
        replication, rate = self._settings.replication, self._link_bandwidth(name, keeper)
        step, version = (
            self._costs.state_bytes(layers[0], layers[-1], moments) for moments in (False, replication.optimizer_state)
        )
        step = step if replication.sends_steps and name != keeper else version
        return replication.copy_stride(step / rate, version / rate, idle_s)

    # --- speeds ----------------------------------------------------------------------------------------------------

    def observe_batch(self, plan: PipelinePlan, device: str, seconds: float) -> bool:
        """Learn a device's speed from the time of a batch; whether it has changed.

        The estimate is a running mean, which restarts when a change is detected.
        """
        layers = plan.stage_layers[plan.order.index(device)]
        nominal_s = self.nominal_batch_s(device, layers[0], layers[-1])
        if nominal_s <= 0 or seconds <= 0:
            return False
        slowness = seconds / nominal_s
        before = self.slowness.setdefault(device, 1.0)
        if self._change_detectors.setdefault(device, ChangeDetector()).detect_change(before, slowness):
            self.slowness[device] = slowness
            return True
        self.slowness[device] = before + _SLOWNESS_GAIN * (slowness - before)
        return False

    def forget_device(self, device: str) -> None:
        """Drop what is known of a device's speed; it may return as another machine."""
        self.slowness.pop(device, None)
        self._change_detectors.pop(device, None)

    # --- forecasts -------------------------------------------------------------------------------------------------

    def current_period_s(self, plan: PipelinePlan) -> float:
        """Seconds between two batches of a layout at the speeds that are known now."""
        durations = self.stage_durations(plan.cuts, plan.order)
        return max(self._settings.schedule.batch_period_s(durations, plan.windows), *self._link_busy_s(durations))

    def stage_durations(self, cuts: Sequence[int], order: Sequence[str]) -> StageDurations:
        """Seconds of each stage and of each transfer, for one part of a batch."""
        samples = self._batch_samples / self._settings.schedule.micro_batch_count
        runs = list(pairwise((0, *cuts, self._costs.layer_count)))
        pairs = list(zip(order, runs, strict=True))
        sizes = [self._costs.cut_bytes_per_sample[cut - 1] * samples for cut in cuts]
        links = list(zip(pairwise(order), sizes, strict=True))
        return StageDurations(
            [
                self._costs.on_device(name).stage_forward_flop(first, end - 1, 1) * samples / self.device_speed(name)
                for name, (first, end) in pairs
            ],
            [
                self._costs.on_device(name).stage_backward_flop(first, end - 1, 1) * samples / self.device_speed(name)
                for name, (first, end) in pairs
            ],
            [self.transfer_s(there, here, size) for (there, here), size in links],
            [self.transfer_s(here, there, size) for (there, here), size in links],
        )

    def migration_s(self, old: PipelinePlan, new: PipelinePlan) -> float:
        """About how many seconds go by between two layouts: the old one runs dry, layers travel, the new one fills."""
        places = {name: place for place, name in enumerate(dict.fromkeys((*old.order, *new.order)))}
        names = list(places)
        before = StageLayout(old.cuts, tuple(places[name] for name in old.order), old.layers)
        after = StageLayout(new.cuts, tuple(places[name] for name in new.order), new.layers)
        arriving: dict[str, float] = dict.fromkeys(names, 0.0)
        for layer, source, target in plan_redistribution(before, (), after, replicas={}).layer_transfers():
            size = self._costs.state_bytes(layer, layer)
            arriving[names[target]] += self.transfer_s(names[source], names[target], size)
        emptying = (len(old.order) + len(new.order) - 2) / 2
        return max(arriving.values()) + emptying * max(self.current_period_s(old), self.current_period_s(new))

    def device_speed(self, name: str) -> float:
        return self._devices[name].flops / self.slowness.get(name, 1.0)

    def nominal_batch_s(self, name: str, first: int, last: int) -> float:
        """Seconds of a batch on some layers at the device's nominal speed."""
        return self._costs.on_device(name).stage_flop(first, last, self._batch_samples) / self._devices[name].flops

    def transfer_s(self, sender: str, receiver: str, size: float) -> float:
        own, other = self._devices[sender].link, self._devices[receiver].link
        return float(size / min(own.up, other.down) + own.overhead + other.overhead)

    def _partition_layers(self, names: Sequence[str]) -> LayerSpecs:
        """Times are those of the first device."""
        costs = self._costs
        return LayerSpecs(
            times=self._layer_times(names[0]),
            outputs=[size * self._batch_samples for size in costs.cut_bytes_per_sample],
            weights=[costs.state_bytes(layer, layer) for layer in range(costs.layer_count)],
            activations=[size * self._batch_samples for size in costs.activation_bytes],
            in_flight=self._settings.schedule.batches_in_flight,
        )

    def _partition_devices(self, names: Sequence[str]) -> DeviceSpecs:
        """A link's two directions are counted one after the other: a device in the middle has one link for both sides,
        so what it sends on and what it sends back share it."""
        reference = self.device_speed(names[0])
        return DeviceSpecs(
            capacities=[reference / self.device_speed(name) for name in names],
            bandwidth=lambda sender, receiver: self._link_bandwidth(names[sender], names[receiver]),
            memory=[self._devices[name].memory for name in names],
            duplex=False,
            layer_times=[self._layer_times(name) for name in names] if self._costs.measured else (),
        )

    def _layer_times(self, name: str) -> list[float]:
        """Seconds of a batch in each layer on a device."""
        costs, speed = self._costs.on_device(name), self.device_speed(name)
        return [costs.stage_flop(layer, layer, self._batch_samples) / speed for layer in range(costs.layer_count)]

    def _link_bandwidth(self, sender: str, receiver: str) -> float:
        return float(min(self._devices[sender].link.up, self._devices[receiver].link.down))

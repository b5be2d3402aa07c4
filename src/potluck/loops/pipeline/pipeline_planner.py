"""Plans which device gets which layers, from its speed, memory and link, and whether moving them pays off."""

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
    """A layout: the device of each stage, its layers, and how many batches it may have in flight."""

    cuts: tuple[int, ...]
    order: tuple[str, ...]
    layers: int
    windows: tuple[int, ...]
    period: float  # forecast seconds between two batches
    stride: int  # every how many batches a copy goes to the keeper
    keepers: tuple[
        str, ...
    ] = ()  # the devices that keep each stage's copies; empty with one stage, whose keeper is the coordinator

    @property
    def stage_layers(self) -> tuple[range, ...]:
        return tuple(range(*ends) for ends in pairwise((0, *self.cuts, self.layers)))

    def has_same_layout(self, other: PipelinePlan) -> bool:
        return (self.cuts, self.order) == (other.cuts, other.order)


class PipelinePlanner:
    """Plans from the fleet's nominal figures and the speeds observed so far."""

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
        """The best layout over the candidates, of which the first holds the data; raises UserError if there is none."""
        names = tuple(candidates[: self._settings.schedule.most_stages])
        prepared = self._loss_plans.get(frozenset(names))
        if prepared is not None and prepared.order[0] == names[0]:
            return prepared
        try:
            partition = self._settings.partition.plan_partition(
                self._partition_layers(names), self._partition_devices(names)
            )
        except ShortMemoryError as error:
            raise error.with_device_name(names) from None
        return self._make_plan(partition, names)

    def plan_fixed_layout(self, cuts: Sequence[int], order: Sequence[str]) -> PipelinePlan:
        """The plan of a given layout."""
        partition = evaluate_partition(
            cuts, range(len(order)), self._partition_layers(order), self._partition_devices(order)
        )
        return self._make_plan(partition, order)

    def check_memory(self, candidates: Sequence[str]) -> None:
        """Raise ShortMemoryError if the devices cannot hold the model in any layout; other errors are raised later."""
        try:
            self.plan_layout(candidates)
        except UserError as error:
            if isinstance(error, ShortMemoryError):
                raise

    def plan_for_losses(self, candidates: Sequence[str], without_first: Sequence[str] = ()) -> None:
        """Prepare the plan for each single death.

        If the first device dies, the layout begins with another one that holds the data, if there is one. No plan is
        prepared for a death that leaves too little memory for the model.
        """
        self._loss_plans = {}
        survivors = [[name for name in candidates if name != lost] for lost in candidates[1:]]
        if without_first:
            survivors.append(list(without_first))
        plans = {}
        for names in survivors:
            with suppress(UserError):
                plans[frozenset(names)] = self.plan_layout(names)
        self._loss_plans = plans

    def clear_loss_plans(self) -> None:
        """Drop the prepared plans, because the speeds have changed."""
        self._loss_plans = {}

    def _make_plan(self, partition: PipelinePartition, names: Sequence[str]) -> PipelinePlan:
        order = tuple(names[index] for index in partition.order)
        durations = self.stage_durations(partition.cuts, order)
        link_busy_s = self._link_busy_s(durations)
        windows = self._limit_windows(
            partition, names, self._settings.schedule.stage_windows(durations, max(link_busy_s))
        )
        period = max(self._settings.schedule.batch_period_s(durations, windows), *link_busy_s)
        plan = PipelinePlan(partition.cuts, order, partition.layers, windows, period, 0)
        return self._with_keepers(plan, (*order[1:], order[0]) if len(order) > 1 else ())

    def _limit_windows(
        self, partition: PipelinePartition, names: Sequence[str], windows: Sequence[int]
    ) -> tuple[int, ...]:
        """Windows limited to what each device can hold in memory; none is larger than the one before it.

        The layout fits the smallest windows of the schedule, but a window that fills idle time may ask for more.
        """
        layers, schedule, limited = self._partition_layers(names), self._settings.schedule, list[int]()
        for index, (window, stage, device) in enumerate(zip(windows, partition.stages, partition.order, strict=True)):
            to_end = len(windows) - index
            each = layers.run_bytes(stage.start, stage.stop, to_end) / schedule.batches_in_flight(to_end)
            capacity = self._devices[names[device]].memory // each if each else window
            limited.append(int(min(window, max(capacity, 1), limited[-1] if limited else window)))
        return tuple(limited)

    def place_copies(self, plan: PipelinePlan, candidates: Sequence[str]) -> PipelinePlan:
        """The same layout with copies kept by the device that would take over, unless copies get less frequent."""
        if len(plan.order) == 1 or not self._settings.replication.sends_steps:
            return plan
        for stage in range(len(plan.order)):
            keepers = list(plan.keepers)
            keepers[stage] = self._successor_device(plan, stage, candidates)
            other = self._with_keepers(plan, keepers)
            plan = other if other.stride <= plan.stride else plan
        return plan

    def _successor_device(self, plan: PipelinePlan, stage: int, candidates: Sequence[str]) -> str:
        """The device that would get most of a stage if its device died."""
        loss_plan = self._loss_plans.get(frozenset(candidates) - {plan.order[stage]})
        if loss_plan is None:
            return plan.keepers[stage]
        inherits = {
            name: self._costs.state_bytes(min(both), max(both))
            for name, layers in zip(loss_plan.order, loss_plan.stage_layers, strict=True)
            if (both := set(layers) & set(plan.stage_layers[stage]))
        }
        return max(inherits, key=lambda name: inherits[name])

    def _with_keepers(self, plan: PipelinePlan, keepers: Sequence[str]) -> PipelinePlan:
        """The plan with these keepers and copies as frequent as the idle time of all stages and keepers allows."""
        link_busy_s = dict(zip(plan.order, self._link_busy_s(self.stage_durations(plan.cuts, plan.order)), strict=True))
        strides = [
            self._copy_stride(layers, name, keeper, plan.period - max(link_busy_s[name], link_busy_s.get(keeper, 0.0)))
            for layers, name, keeper in zip(plan.stage_layers, plan.order, keepers or plan.order, strict=True)
        ]
        return replace(plan, stride=max(strides), keepers=tuple(keepers))

    def _link_busy_s(self, durations: StageDurations) -> list[float]:
        """Seconds per batch for which each device's link is busy; its two neighbours share it."""
        micro_batches = self._settings.schedule.micro_batch_count
        down, up = (0.0, *durations.down, 0.0), (0.0, *durations.up, 0.0)
        return [
            micro_batches * max(down[stage + 1] + up[stage], down[stage] + up[stage + 1])
            for stage in range(durations.stages)
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
        """Seconds between two batches of a layout at the current speeds."""
        durations = self.stage_durations(plan.cuts, plan.order)
        return max(self._settings.schedule.batch_period_s(durations, plan.windows), *self._link_busy_s(durations))

    def stage_durations(self, cuts: Sequence[int], order: Sequence[str]) -> StageDurations:
        """Seconds of each stage and of each transfer, for one micro-batch."""
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
            [self.transfer_s(earlier, later, size) for (earlier, later), size in links],
            [self.transfer_s(later, earlier, size) for (earlier, later), size in links],
        )

    def migration_s(self, old: PipelinePlan, new: PipelinePlan) -> float:
        """Estimated seconds from one layout to another: the old one drains, layers move, the new one fills."""
        indices = {name: index for index, name in enumerate(dict.fromkeys((*old.order, *new.order)))}
        names = list(indices)
        before = StageLayout(old.cuts, tuple(indices[name] for name in old.order), old.layers)
        after = StageLayout(new.cuts, tuple(indices[name] for name in new.order), new.layers)
        arriving: dict[str, float] = dict.fromkeys(names, 0.0)
        for layer, source, target in plan_redistribution(before, (), after, replicas={}).layer_transfers():
            size = self._costs.state_bytes(layer, layer)
            arriving[names[target]] += self.transfer_s(names[source], names[target], size)
        idle_periods = (len(old.order) + len(new.order) - 2) / 2
        return max(arriving.values()) + idle_periods * max(self.current_period_s(old), self.current_period_s(new))

    def device_speed(self, name: str) -> float:
        return self._devices[name].flops / self.slowness.get(name, 1.0)

    def nominal_batch_s(self, name: str, first: int, last: int) -> float:
        """Seconds of a batch on some layers at the device's nominal speed."""
        return self._costs.on_device(name).stage_flop(first, last, self._batch_samples) / self._devices[name].flops

    def transfer_s(self, sender: str, receiver: str, size: float) -> float:
        own, other = self._devices[sender].link, self._devices[receiver].link
        return float(size / min(own.up, other.down) + own.overhead + other.overhead)

    def _partition_layers(self, names: Sequence[str]) -> LayerSpecs:
        """The layers as the partitioner sees them, with the times of the first device."""
        costs = self._costs
        return LayerSpecs(
            times=self._layer_times(names[0]),
            outputs=[size * self._batch_samples for size in costs.cut_bytes_per_sample],
            weights=[costs.state_bytes(layer, layer) for layer in range(costs.layer_count)],
            activations=[size * self._batch_samples for size in costs.activation_bytes],
            in_flight=self._settings.schedule.batches_in_flight,
        )

    def _partition_devices(self, names: Sequence[str]) -> DeviceSpecs:
        """The devices as the partitioner sees them.

        The two directions of a link are counted one after the other: a device in the middle has one link for both
        neighbours, so activations and gradients share it.
        """
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

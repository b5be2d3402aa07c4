"""Plans which device gets which layers, from its speed, memory and link, and whether moving them pays off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from potluck.errors import UserError
from potluck.fleet import Device
from potluck.loops.pipeline.compute_estimates import ComputeEstimates, MeasuredLayers
from potluck.loops.pipeline.link_estimates import LinkEstimates, ReportedTransfer
from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.planning.layer_redistribution import StageLayout, plan_redistribution
from potluck.planning.partition import DeviceSpecs, LayerSpecs, PipelinePartition, ShortMemoryError, evaluate_partition
from potluck.planning.schedule import StageDurations

if TYPE_CHECKING:
    from potluck.loops.pipeline.settings import Pipeline

__all__ = ["PipelinePlan", "PipelinePlanner"]

_LEAST_S = 1e-12  # of a batch on a device


@dataclass(frozen=True)
class PipelinePlan:
    """A layout: the device of each stage, its layers, and how many batches it may have in flight."""

    cuts: tuple[int, ...]
    order: tuple[str, ...]
    layers: int
    windows: tuple[int, ...]  # in micro-batches
    period: float  # forecast seconds between two batches
    stride: int  # every how many batches a copy goes to the replica holder
    replica_holders: tuple[str, ...] = ()  # one device per stage; empty with one stage: the coordinator is its holder
    batches_in_flight: int = 1  # of which the first stage may have something in flight

    @property
    def stage_layers(self) -> tuple[range, ...]:
        return tuple(range(*ends) for ends in pairwise((0, *self.cuts, self.layers)))

    def has_same_layout(self, other: PipelinePlan) -> bool:
        return (self.cuts, self.order) == (other.cuts, other.order)


class PipelinePlanner:
    """Plans from the fleet's nominal figures, measured layer costs, and the speeds observed so far."""

    def __init__(self, fleet: Sequence[Device], costs: PipelineCosts, samples: int, settings: Pipeline) -> None:
        self._devices: Mapping[str, Device] = {device.name: device for device in fleet}
        self._costs = costs
        self._batch_samples = samples
        self._settings = settings
        self._loss_plans: dict[frozenset[str], PipelinePlan] = {}
        self.compute = ComputeEstimates(self._devices, costs, samples, settings.adaptation.layers)
        self.links = LinkEstimates(self._devices)
        if settings.layer_costs == "profiles":
            for name in costs.measured:
                self.compute.set_known_layers(name, self.modelled_layers(name))

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
        plan = self._plan_over(names)
        slow = self.links.slow_devices() if self._settings.partition.may_leave_out else {}
        others = tuple(name for name in names if name == names[0] or name not in slow)
        if len(others) < len(names):
            with suppress(UserError):  # copies, which the partitioner does not count, may make a slow link too slow
                plan = min(plan, self._plan_over(others), key=lambda each: each.period)
        return plan

    def _plan_over(self, names: Sequence[str]) -> PipelinePlan:
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
        in_flight = self._settings.schedule.window_batches(windows[0])
        plan = PipelinePlan(partition.cuts, order, partition.layers, windows, period, 0, batches_in_flight=in_flight)
        plan = self._with_holders(plan, (*order[1:], order[0]) if len(order) > 1 else ())
        return replace(plan, period=max(plan.period, self._copy_s(plan)))

    def _copy_s(self, plan: PipelinePlan) -> float:
        """Seconds per batch that the slowest copy takes, where a stage waits for copies."""
        if not self._settings.replication.max_lag or not plan.replica_holders:
            return 0.0
        stages = zip(plan.stage_layers, plan.order, plan.replica_holders, strict=True)
        return max(
            self._costs.step_bytes(layers[0], layers[-1]) / self.links.bandwidth(name, holder)
            for layers, name, holder in stages
        )

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
            window, memory = min(window, limited[-1] if limited else window), self._devices[names[device]].memory
            while window > 1 and schedule.window_batches(window) * each > memory:
                window -= 1
            limited.append(window)
        return tuple(limited)

    def stage_memory_bytes(self, plan: PipelinePlan) -> tuple[float, ...]:
        """What each stage of a plan takes in memory with as many batches in flight as its window allows."""
        layers, schedule, stages = self._partition_layers(plan.order), self._settings.schedule, len(plan.order)
        return tuple(
            layers.run_bytes(held.start, held.stop, stages - index)
            / schedule.batches_in_flight(stages - index)
            * schedule.window_batches(plan.windows[index])
            for index, held in enumerate(plan.stage_layers)
        )

    def place_copies(self, plan: PipelinePlan, candidates: Sequence[str]) -> PipelinePlan:
        """The same layout with copies kept by the device that would take over, unless that makes copies slower."""
        if len(plan.order) == 1 or not self._settings.replication.sends_steps:
            return plan
        for stage in range(len(plan.order)):
            replica_holders = list(plan.replica_holders)
            replica_holders[stage] = self._successor_device(plan, stage, candidates)
            other = self._with_holders(plan, replica_holders)
            is_slower = self._copy_s(other) > max(plan.period, self._copy_s(plan))
            plan = other if other.stride <= plan.stride and not is_slower else plan
        return plan

    def _successor_device(self, plan: PipelinePlan, stage: int, candidates: Sequence[str]) -> str:
        """The device that would get most of a stage if its device died."""
        loss_plan = self._loss_plans.get(frozenset(candidates) - {plan.order[stage]})
        if loss_plan is None:
            return plan.replica_holders[stage]
        inherits = {
            name: self._costs.state_bytes(min(both), max(both))
            for name, layers in zip(loss_plan.order, loss_plan.stage_layers, strict=True)
            if (both := set(layers) & set(plan.stage_layers[stage]))
        }
        return max(inherits, key=lambda name: inherits[name])

    def _with_holders(self, plan: PipelinePlan, replica_holders: Sequence[str]) -> PipelinePlan:
        """The plan with these holders, and copies as frequent as the idle time of all stages and holders allows."""
        link_busy_s = dict(zip(plan.order, self._link_busy_s(self.stage_durations(plan.cuts, plan.order)), strict=True))
        strides = [
            self._copy_stride(layers, name, holder, plan.period - max(link_busy_s[name], link_busy_s.get(holder, 0.0)))
            for layers, name, holder in zip(plan.stage_layers, plan.order, replica_holders or plan.order, strict=True)
        ]
        return replace(plan, stride=max(strides), replica_holders=tuple(replica_holders))

    def _link_busy_s(self, durations: StageDurations) -> list[float]:
        """Seconds per batch for which each device's link is busy; its two neighbours share it."""
        micro_batches = self._settings.schedule.micro_batch_count
        down, up = (0.0, *durations.down, 0.0), (0.0, *durations.up, 0.0)
        return [
            micro_batches * max(down[stage + 1] + up[stage], down[stage] + up[stage + 1])
            for stage in range(durations.stages)
        ]

    def _copy_stride(self, layers: range, name: str, holder: str, idle_s: float) -> int:
        replication, rate = self._settings.replication, self.links.bandwidth(name, holder)
        step, version = (
            self._costs.state_bytes(layers[0], layers[-1], moments) for moments in (False, replication.optimizer_state)
        )
        if name == holder:  # the only stage, whose copies go to the coordinator
            return replication.copy_stride(version / rate, version / rate, idle_s)
        step = step if replication.sends_steps else version
        return replication.limit_stride(replication.copy_stride(step / rate, version / rate, idle_s))

    # --- observations ----------------------------------------------------------------------------------------------

    def observe_batch(self, plan: PipelinePlan, device: str, seconds: float, layer_s: Sequence[float] = ()) -> bool:
        """Learn a device's speed from the time of a batch and of its layers; whether something has changed."""
        layers = plan.stage_layers[plan.order.index(device)]
        return self.compute.observe_batch(device, layers, seconds, layer_s)

    def observe_transfers(self, receiver: str, transfers: Sequence[ReportedTransfer]) -> bool:
        """Learn bandwidths from what a device has received; whether one has changed."""
        return self.links.observe_transfers(receiver, transfers)

    def forget_device(self, device: str) -> None:
        """Drop what is known of a device's speed and links; it may return as another machine."""
        self.compute.forget_device(device)
        self.links.forget_device(device)

    # --- forecasts -------------------------------------------------------------------------------------------------

    def current_period_s(self, plan: PipelinePlan) -> float:
        """Seconds between two batches of a layout at the current speeds."""
        durations = self.stage_durations(plan.cuts, plan.order)
        busy_s = self._settings.schedule.batch_period_s(durations, plan.windows), *self._link_busy_s(durations)
        return max(*busy_s, self._copy_s(plan))

    def stage_durations(self, cuts: Sequence[int], order: Sequence[str]) -> StageDurations:
        """Seconds of each stage and of each transfer, for one micro-batch."""
        parts = self._settings.schedule.micro_batch_count
        sizes = [self._costs.cut_bytes_per_sample[cut - 1] * self._batch_samples / parts for cut in cuts]
        links = list(zip(pairwise(order), sizes, strict=True))
        forward, backward = [], []
        for name, ends in zip(order, pairwise((0, *cuts, self._costs.layer_count)), strict=True):
            seconds = self.compute.layer_seconds(name)
            forward_s = sum(seconds[layer] * self.compute.forward_fraction(layer) for layer in range(*ends))
            forward.append(forward_s / parts)
            backward.append((sum(seconds[slice(*ends)]) - forward_s) / parts)
        return StageDurations(
            forward,
            backward,
            [self.links.transfer_s(earlier, later, size) for (earlier, later), size in links],
            [self.links.transfer_s(later, earlier, size) for (earlier, later), size in links],
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
            arriving[names[target]] += self.links.transfer_s(names[source], names[target], size)
        idle_periods = (len(old.order) + len(new.order) - 2) / 2
        return max(arriving.values()) + idle_periods * max(self.current_period_s(old), self.current_period_s(new))

    def modelled_layers(self, name: str) -> MeasuredLayers:
        """Seconds of a batch in each layer on a device, by its profile or else by MACs and nominal speed."""
        costs, seconds = self._costs.on_device(name), self._batch_samples / self._devices[name].flops
        return MeasuredLayers(
            [flop * seconds for flop in costs.forward_flop], [flop * seconds for flop in costs.backward_flop]
        )

    def _partition_layers(self, names: Sequence[str]) -> LayerSpecs:
        """The layers as the partitioner sees them, with the times of the first device."""
        costs = self._costs
        return LayerSpecs(
            times=self.compute.layer_seconds(names[0]),
            outputs=[size * self._batch_samples for size in costs.cut_bytes_per_sample],
            weights=[costs.held_bytes(layer) for layer in range(costs.layer_count)],
            activations=[size * self._batch_samples for size in costs.activation_bytes],
            in_flight=self._settings.schedule.batches_in_flight,
        )

    def _partition_devices(self, names: Sequence[str]) -> DeviceSpecs:
        """The devices as the partitioner sees them.

        The two directions of a link are counted one after the other: a device in the middle has one link for both
        neighbours, so activations and gradients share it.
        """
        layer_times = [self.compute.layer_seconds(name) for name in names]
        totals = [max(sum(times), _LEAST_S) for times in layer_times]
        return DeviceSpecs(
            capacities=[total / totals[0] for total in totals],
            bandwidth=lambda sender, receiver: self.links.bandwidth(names[sender], names[receiver]),
            memory=[self._devices[name].memory for name in names],
            duplex=False,
            layer_times=layer_times if self.compute.has_layer_times else (),
        )

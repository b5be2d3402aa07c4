"""The submodel part by class groups: a device trains the trunk and the groups of the classes it is responsible for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from potluck import seeds
from potluck.errors import SettingError
from potluck.model.decoupled import assembled_file
from potluck.model.decoupled.channel_attribution import pooled_features
from potluck.model.decoupled.decouple import Variant, decouple
from potluck.model.decoupled.group_calibration import Extent
from potluck.model.decoupled.group_cut import CutRequest, choose_cut
from potluck.model.decoupled.group_extractor import Batches, Counts, GroupExtractor
from potluck.model.decoupled.group_loss import expected_class_counts
from potluck.model.decoupled.group_plan import describe_groups
from potluck.model.decoupled.grouped_network import GroupedNetwork
from potluck.model.decoupled.sequential_layers import layer_costs, trace_sequential, trunk_length
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.submodel_context import (
    ClassBalance,
    Indices,
    LabelledSamples,
    SampleRules,
    SubmodelContext,
    SubmodelPlan,
    TrainedModel,
)
from potluck.model.submodel_interface import SubmodelExtractor
from potluck.model.submodels.submodel_parts import Submodel
from potluck.model.submodels.width_extractor import training_batches
from potluck.planning.groups import Groups, assign_groups, check_groups, even_groups, similar_groups
from potluck.settings import doc

__all__ = ["ClassGroups"]

PATH = "rounds.submodel"
FILE = "assembled.safetensors"  # in a run's folder
_LOOKED_AT = 4096  # samples used to find similar classes and to attribute channels
_BATCH = 256

Negatives = Literal["own", "generated"]  # the device's samples of other classes, or ones generated from its own
Count = Annotated[int, msgspec.Meta(ge=1)]
Seen = Callable[[Tensor], Tensor]
Depth = Annotated[int, msgspec.Meta(ge=0)]


class ClassGroups(Submodel, frozen=True, kw_only=True, tag="class-groups"):
    """Layers beyond the first `depth` are divided into groups with classes of their own (Chen and Qin 2020)."""

    groups: Annotated[
        Literal["auto"] | Count | tuple[tuple[int, ...], ...],
        doc("Number of class groups, their classes as lists, or `auto`: what the slowest device can afford."),
    ] = 2
    alike: Annotated[bool, doc("Group classes that look alike instead of neighbouring ones.")] = False
    depth: Annotated[
        Literal["auto"] | Depth,
        doc("Number of first layers that all devices share, or `auto`: what the slowest device can afford."),
    ] = 1
    held: Annotated[
        dict[str, tuple[int, ...]], doc("Groups of each device by name; the others are assigned round-robin.")
    ] = msgspec.field(default_factory=dict)
    variant: Annotated[
        Variant, doc("Divide channels evenly, or attribute a trained model's channels to the classes that they serve.")
    ] = "structural"
    trunk: Annotated[
        Literal["averaged", "frozen"],
        doc("Average the shared layers in every round, or keep them as they are at the start."),
    ] = "averaged"
    negatives: Annotated[
        Negatives, doc("Train against the device's own samples of other classes, or against generated ones.")
    ] = "own"
    calibration: Annotated[
        int, msgspec.Meta(ge=0), doc("Number of samples that make the groups' logits comparable; 0 for no calibration.")
    ] = 0
    held_out: Annotated[bool, doc("Exclude the calibration samples from training.")] = True
    extent: Annotated[Extent, doc("Calibrate three values per group, or also the groups' last layers.")] = "readout"

    def __post_init__(self) -> None:
        if self.alike and isinstance(self.groups, tuple):
            raise ValueError("`alike` forms the groups itself; set `groups` to their number")
        if self.held and self.groups == "auto":
            raise ValueError("`held` refers to groups by index; set `groups` too")

    @property
    def is_resolved(self) -> bool:
        """Whether the cut of the network is decided."""
        return self.groups != "auto" and self.depth != "auto"

    def group_counts(self) -> tuple[int, ...]:
        """The numbers of groups to choose from; empty for any."""
        if self.groups == "auto":
            return ()
        return (self.groups if isinstance(self.groups, int) else len(self.groups),)

    def resolve_cut(self, depth: int, groups: int) -> ClassGroups:
        """The same settings with this cut in place of "auto"."""
        return msgspec.structs.replace(self, depth=depth, groups=groups if self.groups == "auto" else self.groups)

    def build_grouped(self, chain: LayerChain, samples: LabelledSamples | None, seed: int) -> GroupedNetwork:
        """The grouped network; without samples (only sizes matter) classes and channels are assigned in order."""
        assert self.depth != "auto", "the cut is decided before the network is split"
        groups = self._resolve_groups(trace_sequential(chain.module, chain.shape)[-1].outputs, samples, seed)
        hollow = samples is None or any(param.is_meta for param in chain.module.parameters())
        return decouple(
            chain.module,
            chain.shape,
            groups,
            self.depth,
            "structural" if hollow else self.variant,
            samples=[] if hollow or samples is None else _spread_batches(samples),
            frozen=self.trunk == "frozen",
            seed=seeds.child_seed(seed, "decouple"),
        )

    def group_by_features(self, chain: LayerChain, samples: LabelledSamples, seed: int) -> ClassGroups:
        """The same settings with groups of classes whose features in a trained network's trunk are similar."""
        assert self.alike, "the groups are given"
        assert self.depth != "auto", "the cut defines the trunk"
        steps = trace_sequential(chain.module, chain.shape)
        trunk = steps[: trunk_length(steps, self.depth)]
        found = self._resolve_groups(steps[-1].outputs, samples, seed, lambda inputs: pooled_features(trunk, inputs))
        return msgspec.structs.replace(self, groups=found, alike=False)

    def groups_by_device(self, devices: Sequence[str], groups: int) -> Mapping[str, tuple[int, ...]]:
        """The groups of each device of a fleet."""
        return assign_groups(devices, groups, self.held, f"{PATH}.held")

    def _resolve_groups(
        self, classes: int, samples: LabelledSamples | None, seed: int, seen: Seen = Tensor.double
    ) -> Groups:
        assert self.groups != "auto", "the cut is decided before the network is split"
        if not isinstance(self.groups, int):
            return check_groups(self.groups, classes, f"{PATH}.groups")
        if self.groups > classes:
            raise SettingError(f"{PATH}.groups", f"{classes} classes cannot form {self.groups} groups; use fewer")
        if self.alike and samples is not None:
            return similar_groups(_class_means(samples, classes, seen), self.groups, seeds.child_seed(seed, "alike"))
        return even_groups(classes, self.groups)

    # --- hooks of Submodel -----------------------------------------------------------------------------------------

    def untrained_warning(self) -> str | None:
        if self.trunk != "frozen" and self.variant != "attributed":
            return None
        key, what = ("trunk", "a frozen trunk") if self.trunk == "frozen" else ("variant", "attribution")
        return f"{PATH}.{key}: {what} is meant for a trained network"

    def resolve(self, context: SubmodelContext, chain: LayerChain) -> ClassGroups:
        part = self
        if not self.is_resolved:
            steps = trace_sequential(chain.module, chain.shape)
            choice = choose_cut(context, self._cut_request(), layer_costs(steps), steps[-1].outputs, PATH)
            part = self.resolve_cut(choice.depth, choice.groups)
        if context.samples is not None and context.pretrained and part.alike:
            part = part.group_by_features(chain, context.samples, context.seed)
        return part

    def adapt_model(self, context: SubmodelContext, chain: LayerChain) -> LayerChain:
        if context.loss not in (None, "cross-entropy"):
            raise SettingError("task.loss", "class groups are for classes; use 'cross-entropy'")
        if context.streaming:
            raise SettingError("stream", "class groups need data that is there from the start; leave this table out")
        grouped = self.build_grouped(chain, context.samples, context.seed)
        return trace_layers(grouped, chain.shape, dtype=chain.dtype)

    def sample_rules(self, context: SubmodelContext, chain: LayerChain) -> SampleRules:
        groups = _grouped_network(chain).spec.groups
        held = self.groups_by_device(context.device_names, len(groups))
        return SampleRules(groups, held, self._held_out_indices(context))

    def build_extractor(self, context: SubmodelContext, model: TrainedModel) -> GroupExtractor:
        grouped = _grouped_network(model.chain)
        held = self.groups_by_device(context.device_names, len(grouped.spec.groups))
        if context.samples is None or model.shards is None:
            return GroupExtractor(model.chain, model.layout, held)
        counts: dict[str, Counts] = {}
        trainable: dict[str, tuple[int, ...]] = {}
        for device, wanted in held.items():
            labels = context.samples.labels[model.shards[device]]
            trainable[device] = self._trainable_groups(grouped, device, wanted, set(np.unique(labels).tolist()))
            counts[device] = self._class_counts(grouped, trainable[device], labels)
        batches = self._calibration_batches(context)
        return GroupExtractor(model.chain, model.layout, trainable, counts, batches, self.extent)

    def class_balance(self, extractor: SubmodelExtractor | None, device: str) -> ClassBalance:
        assert isinstance(extractor, GroupExtractor)
        return ClassBalance(extractor.device_classes(device), self.negatives)

    def device_labels(self, devices: Sequence[str]) -> Mapping[str, str]:
        if self.groups == "auto":
            return {}
        (count,) = self.group_counts()
        held = self.groups_by_device(devices, count)
        return {name: f"group{'s' * (len(own) > 1)} {', '.join(map(str, own))}" for name, own in held.items()}

    def describe_plan(self, context: SubmodelContext, extractor: SubmodelExtractor | None) -> SubmodelPlan:
        assert isinstance(extractor, GroupExtractor)
        return describe_groups(context, self._cut_request(), extractor)

    def save_model(
        self, module: nn.Module, extractor: SubmodelExtractor | None, folder: Path | None
    ) -> Mapping[str, Any]:
        """Assemble the groups into one ordinary network; the summary says which of them no device trained."""
        assert isinstance(module, GroupedNetwork)
        assert isinstance(extractor, GroupExtractor)
        extractor.calibrate_module(module)
        if folder is not None:
            assembled_file.save(module.assemble(), folder / FILE)
        return {"untrained_groups": list(module.untrained_groups())}

    # --- what the hooks need ---------------------------------------------------------------------------------------

    def _cut_request(self) -> CutRequest:
        depths = () if self.depth == "auto" else (self.depth,)
        return CutRequest(self.trunk == "frozen", self.held, self.group_counts(), depths)

    def _trainable_groups(
        self, grouped: GroupedNetwork, device: str, wanted: tuple[int, ...], present: set[int]
    ) -> tuple[int, ...]:
        """The groups that a device's classes can train; a SettingError if there is none."""
        groups, all_classes = grouped.spec.groups, grouped.spec.class_count
        trainable = []
        for group in wanted:
            own = groups[group]
            has_others = self.negatives == "generated" or len(own) == all_classes or not present <= set(own)
            if has_others and not present.isdisjoint(own):
                trainable.append(group)
        if not trainable:
            own_classes = {label for group in wanted for label in groups[group]}
            raise SettingError(f"{PATH}.held.{device}", _untrainable_reason(device, own_classes, present))
        return tuple(trainable)

    def _class_counts(self, grouped: GroupedNetwork, groups: tuple[int, ...], labels: Indices) -> Counts:
        """How many samples of each class a device trains on in an epoch; generated ones form a class of their own."""
        own = [label for group in groups for label in grouped.spec.groups[group]]
        counts = expected_class_counts(labels, own)
        if self.negatives != "generated":
            return counts
        own_counts = {label: counts[label] for label in own if label in counts}
        return {**own_counts, grouped.spec.class_count: sum(own_counts.values())}

    def _held_out_indices(self, context: SubmodelContext) -> Indices:
        """The samples that calibrate and that no device trains on."""
        total = 0 if context.samples is None else len(context.samples)
        if not self.held_out:
            return np.zeros(0, np.int64)
        if 2 * self.calibration > total:
            raise SettingError(
                f"{PATH}.calibration",
                f"{self.calibration} of {total} samples are too many to hold out of training; take at most half of"
                " them, or train on them too: held_out = false",
            )
        order = seeds.child_generator(context.seed, "calibration").permutation(total)
        return np.sort(order[: self.calibration])

    def _calibration_batches(self, context: SubmodelContext) -> Callable[[], Batches] | None:
        samples = context.samples
        if not self.calibration or samples is None:
            return None
        held_out = self._held_out_indices(context)
        if not len(held_out):
            return lambda: training_batches(samples, 1, self.calibration)
        return lambda: [samples.batch(held_out)]


def _grouped_network(chain: LayerChain) -> GroupedNetwork:
    assert isinstance(chain.module, GroupedNetwork)
    return chain.module


def _untrainable_reason(device: str, own: set[int], present: set[int]) -> str:
    if present.isdisjoint(own):
        return f"{device} has no sample of the classes {sorted(own)}; give it other groups, or split the data otherwise"
    return (
        f"{device} has samples of its own classes {sorted(own)} only, nothing to tell them from;"
        " give it samples of others, as split = {kind = 'class-groups', rest = 1.0} does,"
        " or let it make some up: negatives = 'generated'"
    )


def _spread_batches(samples: LabelledSamples) -> list[tuple[Tensor, Tensor]]:
    """Batches of evenly spaced samples, always the same."""
    chosen = np.linspace(0, len(samples) - 1, min(len(samples), _LOOKED_AT)).astype(np.int64)
    return [samples.batch(chosen[start : start + _BATCH]) for start in range(0, len(chosen), _BATCH)]


def _class_means(samples: LabelledSamples, classes: int, seen: Seen) -> npt.NDArray[np.float64]:
    """The mean of each class's samples as transformed by `seen`."""
    batches = _spread_batches(samples)
    inputs = torch.cat([seen(given).flatten(1).double() for given, _ in batches])
    labels = torch.cat([targets for _, targets in batches])
    missing = sorted(set(range(classes)) - set(labels.tolist()))
    if missing:
        raise SettingError(
            f"{PATH}.alike", f"class {missing[0]} is too rare to compare it with others; set the groups explicitly"
        )
    sums = torch.zeros(classes, inputs.shape[1], dtype=torch.float64).index_add_(0, labels, inputs)
    found: npt.NDArray[np.float64] = (sums / torch.bincount(labels, minlength=classes)[:, None]).numpy()
    return found

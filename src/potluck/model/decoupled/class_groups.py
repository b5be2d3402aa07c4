"""The submodel part by class groups: a device trains the trunk and the groups of the classes it is responsible for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from torch import Tensor, nn

from potluck import seeds
from potluck.errors import SettingError
from potluck.model.decoupled import assembled_file
from potluck.model.decoupled.channel_attribution import pooled_features
from potluck.model.decoupled.decouple import Variant, decouple
from potluck.model.decoupled.feature_cache import FeatureCache
from potluck.model.decoupled.group_calibration import Extent
from potluck.model.decoupled.group_cut import CutRequest, choose_cut
from potluck.model.decoupled.group_extractor import Batches, Counts, GroupExtractor, GroupTraining
from potluck.model.decoupled.group_plan import describe_groups
from potluck.model.decoupled.group_samples import (
    PATH,
    FeatureMap,
    Negatives,
    affordable_samples,
    check_cache,
    class_counts,
    class_means,
    refuse_iterable,
    spread_batches,
    trainable_groups,
)
from potluck.model.decoupled.grouped_network import GroupedNetwork
from potluck.model.decoupled.network_layers import channel_graph, refuse_tokens, trace_network
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
from potluck.units import Bytes

__all__ = ["ClassGroups"]

FILE = "assembled.safetensors"  # in a run's folder

Count = Annotated[int, msgspec.Meta(ge=1)]
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
        doc("Number of first layers that all devices have in common, or `auto`: what the slowest device can afford."),
    ] = 1
    held: Annotated[
        dict[str, tuple[int, ...]], doc("Groups of each device by name; the others are assigned round-robin.")
    ] = msgspec.field(default_factory=dict)
    each: Annotated[
        Count | None,
        doc("Groups of every device that `held` does not name; by default as few as train all of them."),
    ] = None
    variant: Annotated[
        Variant, doc("Divide channels evenly, or attribute a trained model's channels to the classes that they serve.")
    ] = "structural"
    trunk: Annotated[
        Literal["averaged", "frozen"],
        doc("Average the shared layers in every round, or keep them as they are at the start."),
    ] = "averaged"
    saving: Annotated[
        Annotated[float, msgspec.Meta(gt=0.0)] | None,
        doc("Cut turns short so that one has so many times fewer MACs than a pass of the whole model over all data."),
    ] = None
    distill: Annotated[
        Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)],
        doc("Weight of the assembled network's probabilities in a device's loss; the device then pulls all groups."),
    ] = 0.0
    negatives: Annotated[
        Negatives, doc("Train against the device's own samples of other classes, or against generated ones.")
    ] = "own"
    calibration: Annotated[
        int, msgspec.Meta(ge=0), doc("Number of samples that make the groups' logits comparable; 0 for no calibration.")
    ] = 0
    held_out: Annotated[bool, doc("Exclude the calibration samples from training.")] = True
    cache: Annotated[
        Bytes,
        doc("Memory of a device for the outputs of a frozen trunk, computed once per sample; 0: in every pass."),
    ] = Bytes(0)
    extent: Annotated[Extent, doc("Calibrate three values per group, or also the groups' last layers.")] = "readout"

    def __post_init__(self) -> None:
        if self.alike and isinstance(self.groups, tuple):
            raise ValueError("`alike` forms the groups itself; set `groups` to their number")
        if self.cache and (self.trunk != "frozen" or self.depth == 0):
            raise ValueError("`cache` keeps the outputs of a frozen trunk; set `trunk` to 'frozen' and a `depth`")
        if self.cache and self.negatives == "generated":
            raise ValueError("`cache` needs samples that stay the same, and generated `negatives` do not; leave it out")
        if self.held and self.groups == "auto":
            raise ValueError("`held` refers to groups by index; set `groups` too")

    def unused_keys(self) -> Mapping[str, str]:
        unused = dict.fromkeys(("scaled", "static"), "on class groups")
        if not self.calibration:
            unused |= dict.fromkeys(("held_out", "extent"), "while `calibration` is 0")
        return unused

    @property
    def is_resolved(self) -> bool:
        """Whether the cut of the network is decided."""
        return self.groups != "auto" and self.depth != "auto"

    def group_counts(self) -> tuple[int, ...]:
        """The group counts to choose from; empty for any."""
        if self.groups == "auto":
            return ()
        return (self.groups if isinstance(self.groups, int) else len(self.groups),)

    def resolve_cut(self, depth: int, groups: int) -> ClassGroups:
        """The same settings with this cut instead of "auto"."""
        return msgspec.structs.replace(self, depth=depth, groups=groups if self.groups == "auto" else self.groups)

    def build_grouped(self, chain: LayerChain, samples: LabelledSamples | None, seed: int) -> GroupedNetwork:
        """The grouped network; without samples (only sizes matter) classes and channels are assigned in order."""
        assert self.depth != "auto", "the cut is decided before the network is split"
        groups = self._resolve_groups(trace_network(chain.module, chain.shape)[-1].outputs, samples, seed)
        shapes_only = samples is None or any(param.is_meta for param in chain.module.parameters())
        return decouple(
            chain.module,
            chain.shape,
            groups,
            self.depth,
            "structural" if shapes_only else self.variant,
            samples=[] if shapes_only or samples is None else spread_batches(samples),
            frozen=self.trunk == "frozen",
            seed=seeds.child_seed(seed, "decouple"),
        )

    def group_by_features(self, chain: LayerChain, samples: LabelledSamples, seed: int) -> ClassGroups:
        """The same settings with groups of classes whose features in a trained network's trunk are similar."""
        assert self.alike, "the groups are given"
        assert self.depth != "auto", "the cut defines the trunk"
        layers = trace_network(chain.module, chain.shape)
        trunk = layers[: channel_graph(layers).trunk_end(self.depth)]
        groups = self._resolve_groups(layers[-1].outputs, samples, seed, lambda inputs: pooled_features(trunk, inputs))
        return msgspec.structs.replace(self, groups=groups, alike=False)

    def groups_by_device(self, devices: Sequence[str], groups: int) -> dict[str, tuple[int, ...]]:
        """The groups of each device of a fleet."""
        return assign_groups(devices, groups, self.held, PATH, self.each)

    def _resolve_groups(
        self, classes: int, samples: LabelledSamples | None, seed: int, features_of: FeatureMap = Tensor.double
    ) -> Groups:
        assert self.groups != "auto", "the cut is decided before the network is split"
        if not isinstance(self.groups, int):
            return check_groups(self.groups, classes, f"{PATH}.groups")
        if self.groups > classes:
            raise SettingError(f"{PATH}.groups", f"{classes} classes cannot form {self.groups} groups; use fewer")
        if self.alike and samples is not None:
            return similar_groups(
                class_means(samples, classes, features_of), self.groups, seeds.child_seed(seed, "alike")
            )
        return even_groups(classes, self.groups)

    # --- hooks of Submodel -----------------------------------------------------------------------------------------

    def untrained_warning(self) -> str | None:
        if self.trunk != "frozen" and self.variant != "attributed":
            return None
        key, what = ("trunk", "a frozen trunk") if self.trunk == "frozen" else ("variant", "attribution")
        return f"{PATH}.{key}: {what} is meant for a trained network"

    def resolve(self, context: SubmodelContext, chain: LayerChain) -> ClassGroups:
        refuse_tokens(chain)
        part = self
        if not self.is_resolved:
            layers = trace_network(chain.module, chain.shape)
            choice = choose_cut(context, self._cut_request(), channel_graph(layers), layers[-1].outputs, PATH)
            part = self.resolve_cut(choice.depth, choice.groups)
        if context.samples is not None and context.pretrained and part.alike:
            part = part.group_by_features(chain, context.samples, context.seed)
        return part

    def adapt_model(self, context: SubmodelContext, chain: LayerChain) -> LayerChain:
        if context.loss not in (None, "cross-entropy"):
            raise SettingError("task.loss", "class groups are for classes; use 'cross-entropy'")
        if context.streaming:
            refuse_iterable(context.samples)
            if self.negatives == "generated":
                raise SettingError(
                    f"{PATH}.negatives", "are generated from data that is there from the start; use 'own' with a stream"
                )
        refuse_tokens(chain)
        grouped = self.build_grouped(chain, context.samples, context.seed)
        return trace_layers(grouped, chain.inputs)

    def sample_rules(self, context: SubmodelContext, chain: LayerChain) -> SampleRules:
        groups = _grouped_network(chain).spec.groups
        held = self.groups_by_device(context.device_names, len(groups))
        return SampleRules(groups, held, self._held_out_indices(context))

    def build_extractor(self, context: SubmodelContext, model: TrainedModel) -> GroupExtractor:
        grouped, samples = _grouped_network(model.chain), context.samples
        held = self.groups_by_device(context.device_names, len(grouped.spec.groups))
        training = GroupTraining(
            streaming=context.streaming,
            cache=FeatureCache(grouped.trunk) if self.cache else None,
            calibration_batches=self._calibration_batches(context),
            extent=self.extent,
            distillation_weight=self.distill,
        )
        counts: dict[str, Counts] = {}
        if samples is not None and model.shards is not None:
            if self.cache:
                check_cache(context, grouped, model.shards, self.cache)
            for device, wanted in held.items():
                labels = samples.labels[model.shards[device]]
                present = set(np.unique(labels).tolist())
                held[device] = trainable_groups(grouped, device, wanted, present, self.negatives)
                counts[device] = class_counts(grouped, held[device], labels, self.negatives, context.streaming)
        training = training._replace(counts=counts, most_samples=self._most_samples(context, grouped, held))
        return GroupExtractor(model.chain, model.layout, held, training)

    def class_balance(self, extractor: SubmodelExtractor | None, device: str) -> ClassBalance:
        assert isinstance(extractor, GroupExtractor)
        return ClassBalance(extractor.device_classes(device), self.negatives, extractor.most_samples(device))

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
        return CutRequest(self.trunk == "frozen", self.held, self.group_counts(), depths, self.each, bool(self.cache))

    def _most_samples(
        self, context: SubmodelContext, grouped: GroupedNetwork, held: Mapping[str, tuple[int, ...]]
    ) -> dict[str, int]:
        """How many samples a turn of each device may train on; empty without a `saving`."""
        if self.saving is None:
            return {}
        if context.streaming:
            raise SettingError(f"{PATH}.saving", "limits passes over data that is there from the start; leave it out")
        total = len(context.devices) * context.assumed_samples if context.samples is None else len(context.samples)
        most = {
            device: affordable_samples(grouped, groups, total / self.saving, bool(self.cache), self.distill > 0)
            for device, groups in held.items()
        }
        device = min(most, key=lambda name: most[name])
        if most[device] < context.batch_size:
            raise SettingError(
                f"{PATH}.saving",
                f"leaves {device} {most[device]} samples in a turn, less than a mini-batch of {context.batch_size};"
                " ask for less, or cut the network into more groups",
            )
        return most

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

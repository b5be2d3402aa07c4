"""Cuts a chain into stages whose composition equals the model, bit for bit.

A stage is a module with the model's own parameters, buffers and leaf modules under the same names; it takes and
returns a tensor, or a tuple where several cross.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

from potluck.errors import ModelError
from potluck.model.cut_points import (
    BatchSizeMarker,
    InputDeviceMarker,
    NotReproducible,
    crossing_nodes,
    has_batch_dimension,
    is_ambient,
    mutated_storages,
    reproduce_value,
)
from potluck.model.graph_recording import GraphRecording
from potluck.model.layer_chain import LayerChain
from potluck.model.meta_interpreter import storage_id

__all__ = ["announce_layers", "build_announcing_stage", "build_layer_range", "build_stages", "sent_nodes"]


def build_stages(chain: LayerChain, cuts: Sequence[int]) -> tuple[nn.Module, ...]:
    """Stages that end after the given layers; the last stage ends with the model."""
    check_cuts(chain, cuts)
    if not cuts:
        return (chain.module,)
    first = [0, *(cut + 1 for cut in cuts)]
    last = [*cuts, len(chain.layers) - 1]
    return tuple(_build_stage(chain, *ends) for ends in zip(first, last, strict=True))


def build_announcing_stage(chain: LayerChain, first: int, last: int, before: Callable[[int], None]) -> nn.Module:
    """The stage of layers `first` to `last`, calling `before(layer)` as each begins; the model itself is not split."""
    cuts = [cut for cut in (first - 1, last) if 0 <= cut < len(chain.layers) - 1]
    check_cuts(chain, cuts)
    if not cuts:
        return chain.module

    def announce_stage_layer(layer: int) -> None:  # fx needs a function with a unique name
        before(layer)

    return _build_stage(chain, first, last, announce_stage_layer)


def check_cuts(chain: LayerChain, cuts: Sequence[int]) -> None:
    """Raise ModelError for cuts that are out of order or not allowed."""
    if list(cuts) != sorted(set(cuts)):
        raise ModelError(f"cuts {list(cuts)} must increase from input to output")
    allowed = [cut.after for cut in chain.cuts]
    for cut in cuts:
        if cut not in allowed:
            where = f"a cut is allowed after {_format_ranges(allowed)}" if allowed else "this model cannot be cut"
            why = f" ({chain.note})" if chain.note and not chain.exact else ""
            raise ModelError(f"cannot cut after layer {cut} of {len(chain.layers)}: {where}{why}")


def announce_layers(chain: LayerChain, before: Callable[[int], None]) -> nn.Module:
    """The whole model, calling `before(layer)` as each layer begins: a forward pre-hook for any exact chain."""

    def announce(layer: int) -> None:  # fx needs a function with a unique name
        before(layer)

    return build_layer_range(chain, 0, len(chain.layers) - 1, entries=[], exits=None, before=announce)


def build_layer_range(
    chain: LayerChain,
    first: int,
    last: int,
    *,
    entries: Sequence[fx.Node],
    exits: Sequence[fx.Node] | None,
    before: Callable[[int], None] | None = None,
) -> fx.GraphModule:
    """Layers first..last as a module from the values of `entries` to those of `exits` (None: to the model's output)."""
    recording = _require_recording(chain)
    inside = [node for node, layer in chain.layer_of.items() if first <= layer <= last and not is_ambient(node)]
    copy = _GraphCopy(recording, changed=mutated_storages(recording, inside))
    copy.add_inputs(entries)
    for node in inside:
        if before is not None and node.op != "placeholder":
            copy.announce_layer(chain.layer_of[node], before)
        copy.copy_node(node)
    if exits is not None:
        copy.set_outputs(exits)
    return _assemble_stage(chain, copy.graph, first, last)


class _GraphCopy:
    """Copies nodes of the recorded graph into a new graph."""

    def __init__(self, recording: GraphRecording, changed: set[int]) -> None:
        self.graph = fx.Graph()
        self._recording = recording
        self._changed = changed
        self._new: dict[fx.Node, Any] = {}
        self._announced = -1
        self._arrived: fx.Node | None = None

    def add_inputs(self, entries: Sequence[fx.Node]) -> None:
        """Add the inputs: a single tensor, or several as a tuple."""
        if not entries:
            return
        whole = self.graph.placeholder("arrived")
        for position, node in enumerate(entries):
            item = whole if len(entries) == 1 else self.graph.call_function(operator.getitem, (whole, position))
            self._new[node] = self._clone_if_changed(node, item)
            if self._arrived is None and has_batch_dimension(self._recording.facts[node]):
                self._arrived = item
        self._arrived = self._arrived or self._new[entries[0]]

    def copy_node(self, node: fx.Node) -> None:
        """Copy one node into the new graph."""
        self._new[node] = self.graph.node_copy(node, self._copied_value)

    def announce_layer(self, layer: int, before: Callable[[int], None]) -> None:
        """Call `before` once when a layer begins."""
        if layer > self._announced:
            self._announced = layer
            self.graph.call_function(before, (layer,))

    def set_outputs(self, exits: Sequence[fx.Node]) -> None:
        """Return the values of these nodes."""
        out = tuple(self._copied_value(node) for node in exits)
        self.graph.output(out[0] if len(out) == 1 else out)

    def _clone_if_changed(self, node: fx.Node, item: fx.Node) -> fx.Node:
        """Clone an input that this stage changes in place: autograd refuses that on a leaf."""
        value = self._recording.facts[node].value
        shared = isinstance(value, torch.Tensor) and storage_id(value) in self._changed
        return self.graph.call_method("clone", (item,)) if shared else item

    def _copied_value(self, node: fx.Node) -> Any:
        if node not in self._new:
            if is_ambient(node):
                self.copy_node(node)
            else:
                self._new[node] = self._emit_value(reproduce_value(self._recording.facts[node]))
        return self._new[node]

    def _emit_value(self, value: Any) -> Any:
        assert value is not NotReproducible, "an illegal cut was not refused"
        if value is BatchSizeMarker:
            return self.graph.call_method("size", (self._arrived, 0))
        if value is InputDeviceMarker:
            return self.graph.call_function(getattr, (self._arrived, "device"))
        return tuple(self._emit_value(inner) for inner in value) if isinstance(value, tuple) else value


def _build_stage(chain: LayerChain, first: int, last: int, before: Callable[[int], None] | None = None) -> nn.Module:
    entries = sent_nodes(chain, first - 1) if first else []
    exits = sent_nodes(chain, last) if last + 1 < len(chain.layers) else None
    return build_layer_range(chain, first, last, entries=entries, exits=exits, before=before)


def sent_nodes(chain: LayerChain, after: int) -> list[fx.Node]:
    """The nodes whose tensors cross after a layer."""
    facts = _require_recording(chain).facts
    return [node for node in crossing_nodes(chain.layer_of, after) if isinstance(facts[node].value, torch.Tensor)]


def _require_recording(chain: LayerChain) -> GraphRecording:
    if chain.recording is None:
        raise ModelError(f"the model cannot be run layer by layer: it {chain.note}")
    return chain.recording


class _GraphRoot(nn.Module):
    """The model's attributes, and the constants that only its graph holds."""

    def __init__(self, module: nn.Module, constants: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.training = module.training
        self.__dict__["_lookup"] = lambda name: constants[name] if name in constants else getattr(module, name)

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_lookup"](name)


def _assemble_stage(chain: LayerChain, graph: fx.Graph, first: int, last: int) -> fx.GraphModule:
    stage = fx.GraphModule(_GraphRoot(chain.module, _require_recording(chain).constants), graph)
    for layer in chain.layers[first : last + 1]:
        for name in (*layer.parameters, *layer.buffers):
            _attach_tensor(stage, chain.module, name)
    _keep_persistence(stage, chain.module)
    return stage


def _attach_tensor(stage: nn.Module, module: nn.Module, path: str) -> None:
    """Add a tensor that the stage's graph does not use, so that the stages together hold the whole state."""
    *steps, name = path.split(".")
    for step in steps:
        if not hasattr(stage, step):
            stage.add_module(step, nn.Module())
        stage, module = getattr(stage, step), getattr(module, step)
    if not hasattr(stage, name):
        tensor = getattr(module, name)
        is_parameter = isinstance(tensor, nn.Parameter)
        stage.register_parameter(name, tensor) if is_parameter else stage.register_buffer(name, tensor)


def _keep_persistence(stage: nn.Module, module: nn.Module) -> None:
    """Mark buffers as non-persistent that are so in the model."""
    saved = module.state_dict(keep_vars=True).keys()
    for path, _ in list(stage.named_buffers()):
        owner, _, name = path.rpartition(".")
        if path not in saved:
            stage.get_submodule(owner)._non_persistent_buffers_set.add(name)


def _format_ranges(indices: Sequence[int]) -> str:
    """`0-3, 7, 9-11`"""
    runs: list[list[int]] = []
    for number in indices:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)

"""Assigns operations and parameters to layers: a layer opens where a weight of two or more dimensions is used.

Norms, activations, pooling and sums belong to the layer before them; what comes before the first weight belongs to the
first layer. A norm that begins a branch of its own, as in the blocks of a transformer, belongs to the layer after it,
so that only the residual stream crosses between two blocks. A parameter belongs to the first layer that uses it; later
uses make it a tied parameter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _NormBase

from potluck.model.flop_counter import iter_tensors, macs_per_sample, size_bytes
from potluck.model.graph_recording import GraphRecording
from potluck.model.meta_interpreter import PROBE_BATCH_SIZES, NodeFacts, storage_id

__all__ = ["Layer", "LayerBuilder", "TiedParameter", "assign_layers"]

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Layer:
    """One parameterised operation and what follows it up to the next one; sizes and MACs are per sample."""

    name: str
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    param_bytes: int
    buffer_bytes: int
    output_bytes: int
    macs: int
    opener: str | None = None
    activation_bytes: int = 0  # of all that is computed in the layer, which backward needs
    constants: tuple[str, ...] = ()  # those of `buffers` that training does not change

    @property
    def changing_buffers(self) -> tuple[str, ...]:
        return tuple(name for name in self.buffers if name not in self.constants)


@dataclass(frozen=True)
class TiedParameter:
    """A parameter that a later layer uses again, so its gradient is final only after its owner's backward."""

    parameter: str
    owner: int
    user: int


@dataclass
class _OpenLayer:
    name: str = ""
    opener: str | None = None
    tensors: list[str] = field(default_factory=list)
    flops: int = 0
    output_bytes: int = 0
    activation_bytes: int = 0


class LayerBuilder:
    """Builds the layers from the uses of tensors, reported in execution order."""

    def __init__(self, module: nn.Module) -> None:
        self._parameters = dict(module.named_parameters())
        self._buffers = dict(module.named_buffers())
        self._names = {id(tensor): name for name, tensor in (self._parameters | self._buffers).items()}
        self._weights = set(_weight_names(module))
        self._open_layers = [_OpenLayer()]
        self._owner: dict[str, int] = {}
        self._used_in_layer: set[str] = set()
        self.reuses: list[TiedParameter] = []

    @property
    def current_layer(self) -> int:
        """The index of the layer that is being built."""
        return len(self._open_layers) - 1

    def owned_names(self, tensors: Iterable[torch.Tensor]) -> list[str]:
        """Those of the tensors that the module owns, by name."""
        return [self._names[id(tensor)] for tensor in tensors if id(tensor) in self._names]

    def opens_layer(self, names: Iterable[str], *, called: bool) -> bool:
        """Whether this use opens a layer: a call of a module always does, a bare weight once per layer."""
        return any(name in self._weights and (called or name not in self._used_in_layer) for name in names)

    def open_layer(self, name: str, opener: str | None) -> None:
        """Open a layer; it includes what came before it if a layer has begun, and the first one always does."""
        self.begin_layer()
        again = sum(open_layer.name.split("@")[0] == name for open_layer in self._open_layers)
        self._open_layers[-1].name = f"{name}@{again + 1}" if again else name
        self._open_layers[-1].opener = opener

    def begin_layer(self) -> None:
        """End the current layer; the next weight that is used names the one that begins here."""
        if self._open_layers[-1].name:
            self._open_layers.append(_OpenLayer())
            self._used_in_layer = set()

    def record_use(self, names: Iterable[str]) -> None:
        """Record that the current layer uses these tensors."""
        for name in names:
            owner = self._owner.setdefault(name, self.current_layer)
            if owner == self.current_layer and name not in self._open_layers[-1].tensors:
                self._open_layers[-1].tensors.append(name)
            elif owner != self.current_layer and name not in self._used_in_layer:
                self.reuses.append(TiedParameter(name, owner, self.current_layer))
            self._used_in_layer.add(name)

    def add_flops(self, flops: int) -> None:
        """Add FLOPs to the current layer."""
        self._open_layers[-1].flops += flops

    def set_output_bytes(self, layer: int, output_bytes: int) -> None:
        """Set the bytes of a layer's output, for the whole batch."""
        self._open_layers[layer].output_bytes = output_bytes

    def set_activation_bytes(self, layer: int, activation_bytes: int) -> None:
        """Set the bytes of all that a layer computes, for the whole batch."""
        self._open_layers[layer].activation_bytes = activation_bytes

    def unused_parameters(self) -> tuple[str, ...]:
        """Parameters that no layer has used."""
        return tuple(name for name in self._parameters if name not in self._owner)

    def tied_parameters(self) -> tuple[TiedParameter, ...]:
        """Reuses of parameters, without those of buffers."""
        return tuple(reuse for reuse in self.reuses if reuse.parameter in self._parameters)

    def split_reuses(self, constants: frozenset[str]) -> tuple[list[TiedParameter], list[TiedParameter]]:
        """The reuses of tensors that training changes, and those of frozen ones, of which every stage has a copy."""
        frozen = {name for name, parameter in self._parameters.items() if not parameter.requires_grad} | constants
        changing = [reuse for reuse in self.reuses if reuse.parameter not in frozen]
        return changing, [reuse for reuse in self.reuses if reuse.parameter in frozen]

    def build_layers(self, constants: frozenset[str] = frozenset()) -> tuple[Layer, ...]:
        """The layers; unused tensors go into the last one. `constants` are buffers that training does not change."""
        last = self._open_layers[-1]
        last.tensors += [name for name in self._parameters | self._buffers if name not in self._owner]
        last.name = last.name or next(iter(self._parameters))
        return tuple(self._build_layer(open_layer, constants) for open_layer in self._open_layers)

    def _build_layer(self, open_layer: _OpenLayer, constants: frozenset[str]) -> Layer:
        parameters = tuple(name for name in open_layer.tensors if name in self._parameters)
        buffers = tuple(name for name in open_layer.tensors if name in self._buffers)
        return Layer(
            name=open_layer.name,
            parameters=parameters,
            buffers=buffers,
            param_bytes=size_bytes([self._parameters[name] for name in parameters]),
            buffer_bytes=size_bytes([self._buffers[name] for name in buffers]),
            output_bytes=-(-open_layer.output_bytes // PROBE_BATCH_SIZES[0]),
            macs=macs_per_sample(open_layer.flops, PROBE_BATCH_SIZES[0]),
            opener=open_layer.opener,
            activation_bytes=-(-max(open_layer.activation_bytes, open_layer.output_bytes) // PROBE_BATCH_SIZES[0]),
            constants=tuple(name for name in buffers if name in constants),
        )


def assign_layers(recording: GraphRecording) -> tuple[LayerBuilder, dict[fx.Node, int]]:
    """Assign each node of the graph to a layer, in execution order."""
    builder = LayerBuilder(recording.meta_module)
    layer_of: dict[fx.Node, int] = {}
    for node in recording.graph.nodes:
        if node.op != "get_attr":
            _record_node(node, recording, builder)
        layer_of[node] = builder.current_layer
    for node in recording.graph.nodes:
        if node.op == "get_attr" and node.users:
            layer_of[node] = min(layer_of[user] for user in node.users)
    for layer, output_bytes in enumerate(_output_bytes(recording, layer_of)):
        builder.set_output_bytes(layer, output_bytes)
    for layer, activation_bytes in enumerate(_activation_bytes(recording, layer_of)):
        builder.set_activation_bytes(layer, activation_bytes)
    return builder, layer_of


def _record_node(node: fx.Node, recording: GraphRecording, builder: LayerBuilder) -> None:
    called = node.op == "call_module"
    names = builder.owned_names(_tensors_used(node, recording.meta_module))
    if builder.opens_layer(names, called=called):
        target = str(node.target)
        weight = next(name for name in names if builder.opens_layer([name], called=called))
        builder.open_layer(target if called else weight, target if called else None)
    elif called and _begins_branch(node, recording):
        builder.begin_layer()
    builder.record_use(names)
    builder.add_flops(recording.facts[node].flops)


def _begins_branch(node: fx.Node, recording: GraphRecording) -> bool:
    """Whether this normalises each position of what others use as well, and a weight follows."""
    norm = recording.meta_module.get_submodule(str(node.target))
    if isinstance(norm, _NormBase | nn.GroupNorm) or "norm" not in type(norm).__name__.lower():
        return False
    shared = len(node.all_input_nodes) == 1 and len(node.all_input_nodes[0].users) > 1
    return shared and any(_has_matrix(user, recording) for user in node.users)


def _has_matrix(node: fx.Node, recording: GraphRecording) -> bool:
    return any(tensor.dim() > 1 for tensor in _tensors_used(node, recording.meta_module))


def _tensors_used(node: fx.Node, meta_module: nn.Module) -> list[torch.Tensor]:
    if node.op == "call_module":
        module = meta_module.get_submodule(str(node.target))
        return [*module.parameters(), *module.buffers()]
    fetched = [
        get_attribute(meta_module, str(source.target)) for source in node.all_input_nodes if source.op == "get_attr"
    ]
    return [value for value in fetched if isinstance(value, torch.Tensor)]


def get_attribute(module: nn.Module, path: str) -> object:
    """The attribute at a dotted path."""
    value: object = module
    for step in path.split("."):
        value = getattr(value, step)
    return value


def _output_bytes(recording: GraphRecording, layer_of: dict[fx.Node, int]) -> list[int]:
    """Bytes that each layer outputs to later layers or the caller; shared memory counts once."""
    storages: list[dict[int, int]] = [{} for _ in range(max(layer_of.values()) + 1)]
    for node, layer in layer_of.items():
        is_output = any(user.op == "output" or layer_of[user] > layer for user in node.users)
        if is_output and node.op not in ("get_attr", "placeholder"):
            storages[layer] |= _storage_bytes(recording.facts[node])
    return [sum(sizes.values()) for sizes in storages]


def _activation_bytes(recording: GraphRecording, layer_of: dict[fx.Node, int]) -> list[int]:
    """Bytes of all that each layer computes, plus the input in the first; in-place operations add nothing."""
    storages: list[dict[int, int]] = [{} for _ in range(max(layer_of.values()) + 1)]
    for node, layer in layer_of.items():
        if node.op not in ("get_attr", "output"):
            storages[layer] |= _storage_bytes(recording.facts[node])
    return [sum(sizes.values()) for sizes in storages]


def _storage_bytes(fact: NodeFacts) -> dict[int, int]:
    return {storage_id(tensor): size_bytes(tensor) for tensor in iter_tensors(fact.value)}


def _weight_names(module: nn.Module) -> list[str]:
    """Names of the parameters whose use opens a layer."""
    return [
        f"{path}.{name}" if path else name
        for path, submodule in module.named_modules()
        if not isinstance(submodule, NORMS)
        for name, parameter in submodule.named_parameters(recurse=False)
        if parameter.dim() >= 2
    ]

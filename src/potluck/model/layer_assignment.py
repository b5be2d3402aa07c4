"""Which parameter belongs to which layer: a layer opens where a weight of two or more dimensions is used.

Norms, activations, pooling and sums belong to the layer before them; what comes before the first weight belongs
to the first layer. A parameter belongs to the first layer that uses it; later users are kept as its reuse.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _NormBase

from potluck.model.flop_counter import iter_tensors, macs_per_sample, size_bytes
from potluck.model.graph_recording import GraphRecording
from potluck.model.meta_interpreter import BATCHES, NodeFacts, storage_id

__all__ = ["Layer", "LayerBuilder", "TiedParameter", "assign_layers"]

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Layer:
    """One parameterised unit and what follows it up to the next one; sizes and MACs are those of one sample."""

    name: str
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    param_bytes: int
    buffer_bytes: int
    output_bytes: int
    macs: int
    opener: str | None = None
    activation_bytes: int = 0  # of all that is made in the layer, which the way back needs


@dataclass(frozen=True)
class TiedParameter:
    """A tied parameter: a later layer uses it again, so its gradient is final only after its owner's backward."""

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
    """Writes layers down as the uses of tensors come in, in execution order."""

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
        """The index of the layer that is being written."""
        return len(self._open_layers) - 1

    def owned_names(self, tensors: Iterable[torch.Tensor]) -> list[str]:
        """Those of the tensors that the module owns, by name."""
        return [self._names[id(tensor)] for tensor in tensors if id(tensor) in self._names]

    def opens_layer(self, names: Iterable[str], *, called: bool) -> bool:
        """Does this use begin a layer? A module that is called always does, a bare weight once in a layer."""
        return any(name in self._weights and (called or name not in self._used_in_layer) for name in names)

    def open_layer(self, name: str, opener: str | None) -> None:
        """Begin a layer; the first takes over what came before it."""
        if self._open_layers[-1].name:
            self._open_layers.append(_OpenLayer())
            self._used_in_layer = set()
        again = sum(draft.name.split("@")[0] == name for draft in self._open_layers)
        self._open_layers[-1].name = f"{name}@{again + 1}" if again else name
        self._open_layers[-1].opener = opener

    def record_use(self, names: Iterable[str]) -> None:
        """The current layer uses these tensors."""
        for name in names:
            owner = self._owner.setdefault(name, self.current_layer)
            if owner == self.current_layer and name not in self._open_layers[-1].tensors:
                self._open_layers[-1].tensors.append(name)
            elif owner != self.current_layer and name not in self._used_in_layer:
                self.reuses.append(TiedParameter(name, owner, self.current_layer))
            self._used_in_layer.add(name)

    def add_flops(self, flops: int) -> None:
        """The current layer costs so many FLOPs more."""
        self._open_layers[-1].flops += flops

    def set_output_bytes(self, layer: int, output_bytes: int) -> None:
        """What a layer hands on, for the whole batch."""
        self._open_layers[layer].output_bytes = output_bytes

    def set_activation_bytes(self, layer: int, activation_bytes: int) -> None:
        """All that a layer makes, for the whole batch."""
        self._open_layers[layer].activation_bytes = activation_bytes

    def unused_parameters(self) -> tuple[str, ...]:
        """Parameters that no layer has used."""
        return tuple(name for name in self._parameters if name not in self._owner)

    def tied_parameters(self) -> tuple[TiedParameter, ...]:
        """The tied parameters."""
        return tuple(span for span in self.reuses if span.parameter in self._parameters)

    def build_layers(self) -> tuple[Layer, ...]:
        """The layers; what was never used goes into the last one."""
        last = self._open_layers[-1]
        last.tensors += [name for name in self._parameters | self._buffers if name not in self._owner]
        last.name = last.name or next(iter(self._parameters))
        return tuple(self._build_layer(draft) for draft in self._open_layers)

    def _build_layer(self, draft: _OpenLayer) -> Layer:
        parameters = tuple(name for name in draft.tensors if name in self._parameters)
        buffers = tuple(name for name in draft.tensors if name in self._buffers)
        return Layer(
            name=draft.name,
            parameters=parameters,
            buffers=buffers,
            param_bytes=size_bytes([self._parameters[name] for name in parameters]),
            buffer_bytes=size_bytes([self._buffers[name] for name in buffers]),
            output_bytes=-(-draft.output_bytes // BATCHES[0]),
            macs=macs_per_sample(draft.flops, BATCHES[0]),
            opener=draft.opener,
            activation_bytes=-(-max(draft.activation_bytes, draft.output_bytes) // BATCHES[0]),
        )


def assign_layers(recording: GraphRecording) -> tuple[LayerBuilder, dict[fx.Node, int]]:
    """Lay the graph's nodes out over layers, in execution order."""
    ledger = LayerBuilder(recording.meta_module)
    layer_of: dict[fx.Node, int] = {}
    for node in recording.graph.nodes:
        if node.op != "get_attr":
            _record_node(node, recording, ledger)
        layer_of[node] = ledger.current_layer
    for node in recording.graph.nodes:
        if node.op == "get_attr" and node.users:
            layer_of[node] = min(layer_of[user] for user in node.users)
    for layer, output_bytes in enumerate(_output_bytes(recording, layer_of)):
        ledger.set_output_bytes(layer, output_bytes)
    for layer, activation_bytes in enumerate(_activation_bytes(recording, layer_of)):
        ledger.set_activation_bytes(layer, activation_bytes)
    return ledger, layer_of


def _record_node(node: fx.Node, recording: GraphRecording, ledger: LayerBuilder) -> None:
    called = node.op == "call_module"
    names = ledger.owned_names(_tensors_used(node, recording.meta_module))
    if ledger.opens_layer(names, called=called):
        target = str(node.target)
        weight = next(name for name in names if ledger.opens_layer([name], called=called))
        ledger.open_layer(target if called else weight, target if called else None)
    ledger.record_use(names)
    ledger.add_flops(recording.facts[node].flops)


def _tensors_used(node: fx.Node, bones: nn.Module) -> list[torch.Tensor]:
    if node.op == "call_module":
        module = bones.get_submodule(str(node.target))
        return [*module.parameters(), *module.buffers()]
    fetched = [get_attribute(bones, str(source.target)) for source in node.all_input_nodes if source.op == "get_attr"]
    return [value for value in fetched if isinstance(value, torch.Tensor)]


def get_attribute(module: nn.Module, path: str) -> object:
    """The attribute at a dotted path."""
    found: object = module
    for step in path.split("."):
        found = getattr(found, step)
    return found


def _output_bytes(recording: GraphRecording, layer_of: dict[fx.Node, int]) -> list[int]:
    """Bytes that each layer makes for later layers or for the caller; memory that is shared counts once."""
    made: list[dict[int, int]] = [{} for _ in range(max(layer_of.values()) + 1)]
    for node, layer in layer_of.items():
        leaves = any(user.op == "output" or layer_of[user] > layer for user in node.users)
        if leaves and node.op not in ("get_attr", "placeholder"):
            made[layer] |= _storage_bytes(recording.facts[node])
    return [sum(sizes.values()) for sizes in made]


def _activation_bytes(recording: GraphRecording, layer_of: dict[fx.Node, int]) -> list[int]:
    """Bytes of all that is made in each layer, the network's input in the first; what is done in place adds nothing."""
    made: list[dict[int, int]] = [{} for _ in range(max(layer_of.values()) + 1)]
    for node, layer in layer_of.items():
        if node.op not in ("get_attr", "output"):
            made[layer] |= _storage_bytes(recording.facts[node])
    return [sum(sizes.values()) for sizes in made]


def _storage_bytes(fact: NodeFacts) -> dict[int, int]:
    return {storage_id(tensor): size_bytes(tensor) for tensor in iter_tensors(fact.value)}


def _weight_names(module: nn.Module) -> list[str]:
    """Names of the parameters whose use opens a layer."""
    return [
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        if not isinstance(part, NORMS)
        for name, parameter in part.named_parameters(recurse=False)
        if parameter.dim() >= 2
    ]

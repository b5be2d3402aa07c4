"""Turns any module into an ordered chain of layers.

    module ──graph_recording──▶ graph ──layer_assignment──▶ layers ──cut_points──▶ where a pipeline may cut
       └─(untraceable)──────────────────▶ the order observed in one run, else the modules' order; no cuts

Nothing is computed and nothing big is allocated: all of it happens on meta tensors, so a model may itself be meta.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from potluck.errors import ModelError
from potluck.model import meta_copy
from potluck.model.constant_buffers import find_constant_buffers
from potluck.model.cut_points import CrossingTensor, CutPoint, find_cuts
from potluck.model.flop_counter import FlopCounter, iter_tensors, size_bytes
from potluck.model.graph_recording import GraphRecording, UntraceableError, record_graph
from potluck.model.input_spec import InputSpec, call_model
from potluck.model.layer_assignment import Layer, LayerBuilder, TiedParameter, assign_layers
from potluck.model.meta_copy import copy_to_meta
from potluck.model.meta_interpreter import PROBE_BATCH_SIZES
from potluck.model.shape_only import ShapeOnlyMode
from potluck.user_code import describe_user_error

__all__ = [
    "CrossingTensor",
    "CutPoint",
    "Layer",
    "LayerChain",
    "TiedParameter",
    "list_layers",
    "observe_layers",
    "trace_layers",
]


@dataclass(frozen=True, eq=False)
class LayerChain:
    """A module's layers in execution order. `exact` means that the order was traced; if not, `note` says why."""

    module: nn.Module
    layers: tuple[Layer, ...]
    inputs: InputSpec
    exact: bool
    note: str = ""
    cuts: tuple[CutPoint, ...] = ()
    tied_parameters: tuple[TiedParameter, ...] = ()
    frozen_reuses: tuple[TiedParameter, ...] = ()  # of frozen parameters and constant buffers, which rule out no cut
    recording: GraphRecording | None = field(default=None, repr=False)
    layer_of: dict[fx.Node, int] = field(default_factory=dict, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample; ModelError where a sample is more than one tensor."""
        if not self.inputs.is_tensor:
            raise ModelError(f"this needs samples that are one tensor each, not {self.inputs.description}")
        return self.inputs.shapes[0]

    def opening_module(self, layer: int | Layer) -> nn.Module | None:
        """The submodule whose call opens this layer; None if a bare parameter opens it."""
        opener = (self.layers[layer] if isinstance(layer, int) else layer).opener
        return None if opener is None else self.module.get_submodule(opener)


def trace_layers(
    module: nn.Module, inputs: InputSpec | tuple[int, ...], *, dtype: torch.dtype | None = None
) -> LayerChain:
    """The chain of a module whose samples look like `inputs`, or are tensors of this shape and dtype.

    Floating-point inputs have the dtype of the model's parameters unless `dtype` says otherwise.
    """
    meta_copy.check_module(module)
    own_dtype = meta_copy.input_dtype(module)
    if not isinstance(inputs, InputSpec):
        inputs = InputSpec.of_shape(inputs, dtype or own_dtype)
    inputs = inputs.with_floats(dtype if dtype is not None and dtype.is_floating_point else own_dtype)
    try:
        return _build_traced(module, inputs)
    except UntraceableError as why:
        return _build_untraced(module, inputs, str(why))


def _build_traced(module: nn.Module, inputs: InputSpec) -> LayerChain:
    recording = record_graph(module, inputs)
    builder, layer_of = assign_layers(recording)
    notes = (
        [] if recording.both_modes else ["its forward differs in evaluation mode, so its stages are for training only"]
    )
    constants = _constant_buffers(module, inputs)
    changing, frozen = builder.split_reuses(constants)
    return LayerChain(
        module=module,
        layers=builder.build_layers(constants),
        inputs=inputs,
        exact=True,
        note=_chain_note(notes, builder),
        cuts=find_cuts(recording, layer_of, changing),
        tied_parameters=builder.tied_parameters(),
        frozen_reuses=tuple(frozen),
        recording=recording,
        layer_of=layer_of,
    )


def _build_untraced(module: nn.Module, inputs: InputSpec, why: str) -> LayerChain:
    try:
        builder = observe_layers(module, inputs)
        order = "layers are in the order observed in one run, and cannot be cut into stages"
    except Exception as error:  # a user's forward may raise anything
        builder = list_layers(module)
        reason = describe_user_error(error)
        why = f"{why}) nor run on meta tensors ({'likewise' if reason == why else reason}"
        order = "layers are in the order of the modules, without costs or cuts"
    note = _chain_note([f"could not be traced ({why}); {order}"], builder)
    layers = builder.build_layers(_constant_buffers(module, inputs))
    return LayerChain(module, layers, inputs, exact=False, note=note, tied_parameters=builder.tied_parameters())


def _constant_buffers(module: nn.Module, inputs: InputSpec) -> frozenset[str]:
    return find_constant_buffers(module, lambda meta: call_model(meta, inputs.meta_batch(PROBE_BATCH_SIZES[0])))


def _chain_note(notes: list[str], builder: LayerBuilder) -> str:
    unused = builder.unused_parameters()
    if unused:
        shown = ", ".join(unused[:3]) + (", …" if len(unused) > 3 else "")
        notes.append(f"{len(unused)} parameters are never used in forward ({shown}) and are assigned to the last layer")
    return "; ".join(notes)


def observe_layers(module: nn.Module, inputs: InputSpec) -> LayerBuilder:
    """Run once on meta tensors and record which parameters each operation uses."""
    meta_module = copy_to_meta(module).train()
    with FlopCounter() as flop_counter, ShapeOnlyMode():
        observer = _ParameterUseObserver(meta_module, flop_counter)
        with observer:
            call_model(meta_module, inputs.meta_batch(PROBE_BATCH_SIZES[0]))
        observer.finish_layer()
    return observer.builder


def list_layers(module: nn.Module) -> LayerBuilder:
    """The modules in the order in which they are registered, without sizes and costs."""
    builder = LayerBuilder(module)
    for path, submodule in module.named_modules():
        names = builder.owned_names([*submodule.parameters(recurse=False), *submodule.buffers(recurse=False)])
        if builder.opens_layer(names, called=True):
            builder.open_layer(path or names[0], path or None)
        builder.record_use(names)
    return builder


class _ParameterUseObserver(TorchFunctionMode):
    """Intercepts every torch call and records the parameters among its arguments."""

    def __init__(self, meta_module: nn.Module, flop_counter: FlopCounter) -> None:
        super().__init__()
        self.builder = LayerBuilder(meta_module)
        self._flop_counter = flop_counter
        self._modules = dict(meta_module.named_modules())
        self._output_bytes = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        # Reading .shape or .dtype of a weight is not a use of it.
        if getattr(func, "__name__", "") != "__get__":
            self._record_use(self.builder.owned_names(iter_tensors([args, kwargs])))
        value = func(*args, **kwargs)
        self._output_bytes = size_bytes(value) or self._output_bytes
        return value

    def finish_layer(self) -> None:
        """End the current layer."""
        self.builder.add_flops(self._flop_counter.take_count())
        self.builder.set_output_bytes(self.builder.current_layer, self._output_bytes)

    def _record_use(self, names: list[str]) -> None:
        if self.builder.opens_layer(names, called=False):
            self.finish_layer()
            weight = next(name for name in names if self.builder.opens_layer([name], called=False))
            owner = weight.rpartition(".")[0]
            self.builder.open_layer(owner or weight, owner if self._is_leaf_module(owner) else None)
        self.builder.record_use(names)

    def _is_leaf_module(self, path: str) -> bool:
        return bool(path) and (
            not list(self._modules[path].children()) or isinstance(self._modules[path], nn.MultiheadAttention)
        )

"""Turns any module into an ordered chain of layers.

    module ──graph_recording──▶ graph ──layer_assignment──▶ layers ──cut_points──▶ where a pipeline may cut
       └─(untraceable)──untraced_layers──▶ the order observed in one run, else the modules' order; no cuts

Nothing is computed and nothing big is allocated: all of it happens on meta tensors, so a model may itself be meta.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx, nn

from potluck.model import meta_copy
from potluck.model.cut_points import CrossingTensor, CutPoint, find_cuts
from potluck.model.graph_recording import GraphRecording, UntraceableError, error_reason, record_graph
from potluck.model.layer_assignment import Layer, LayerBuilder, TiedParameter, assign_layers
from potluck.model.untraced_layers import list_layers, observe_layers

__all__ = ["CrossingTensor", "CutPoint", "Layer", "LayerChain", "TiedParameter", "trace_layers"]


@dataclass(frozen=True, eq=False)
class LayerChain:
    """A module's layers in execution order. `exact` means that the order was traced; if not, `note` says why."""

    module: nn.Module
    layers: tuple[Layer, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    exact: bool
    note: str = ""
    cuts: tuple[CutPoint, ...] = ()
    tied_parameters: tuple[TiedParameter, ...] = ()
    recording: GraphRecording | None = field(default=None, repr=False)
    layer_of: dict[fx.Node, int] = field(default_factory=dict, repr=False)

    def opening_module(self, layer: int | Layer) -> nn.Module | None:
        """The submodule whose call opens this layer; None if a bare parameter opens it."""
        opener = (self.layers[layer] if isinstance(layer, int) else layer).opener
        return None if opener is None else self.module.get_submodule(opener)


def trace_layers(module: nn.Module, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32) -> LayerChain:
    """The chain of a module whose samples have this shape and dtype."""
    meta_copy.check_module(module)
    shape = tuple(shape)
    try:
        return _build_traced(module, shape, dtype)
    except UntraceableError as why:
        return _build_untraced(module, shape, dtype, str(why))


def _build_traced(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> LayerChain:
    recording = record_graph(module, shape, dtype)
    builder, layer_of = assign_layers(recording)
    notes = (
        [] if recording.both_modes else ["its forward differs in evaluation mode, so its stages are for training only"]
    )
    return LayerChain(
        module=module,
        layers=builder.build_layers(),
        shape=shape,
        dtype=dtype,
        exact=True,
        note=_chain_note(notes, builder),
        cuts=find_cuts(recording, layer_of, builder.reuses),
        tied_parameters=builder.tied_parameters(),
        recording=recording,
        layer_of=layer_of,
    )


def _build_untraced(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, why: str) -> LayerChain:
    try:
        builder = observe_layers(module, shape, dtype)
        order = "layers are in the order observed in one run, and cannot be cut into stages"
    except Exception as error:  # a user's forward may raise anything
        builder = list_layers(module)
        why = f"{why}) nor run on meta tensors ({error_reason(error)}"
        order = "layers are in the order of the modules, without costs or cuts"
    note = _chain_note([f"could not be traced ({why}); {order}"], builder)
    return LayerChain(
        module, builder.build_layers(), shape, dtype, exact=False, note=note, tied_parameters=builder.tied_parameters()
    )


def _chain_note(notes: list[str], builder: LayerBuilder) -> str:
    unused = builder.unused_parameters()
    if unused:
        shown = ", ".join(unused[:3]) + (", …" if len(unused) > 3 else "")
        notes.append(f"{len(unused)} parameters are never used in forward ({shown}) and are assigned to the last layer")
    return "; ".join(notes)

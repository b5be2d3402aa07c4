"""Any module as an ordered chain of layers.

    module ──tracing──▶ graph ──layers──▶ who owns which parameter ──cuts──▶ where a pipeline may cut
       └─(cannot be traced)──observing──▶ the order seen in one run, else the modules' own order; no cuts

Nothing is run and nothing big is allocated: all of it happens on meta tensors, so a model may itself be meta.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx, nn

from potluck.model import skeleton
from potluck.model.cuts import Crossing, Cut, cuts
from potluck.model.layers import Layer, Ledger, Reuse, divide
from potluck.model.observing import listed, observed
from potluck.model.tracing import Recording, Untraceable, reason, record

__all__ = ["Chain", "Crossing", "Cut", "Layer", "Reuse", "trace"]


@dataclass(frozen=True, eq=False)
class Chain:
    """A module's layers in execution order. `exact` says that the order was traced; if not, `note` says why."""

    module: nn.Module
    layers: tuple[Layer, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    exact: bool
    note: str = ""
    cuts: tuple[Cut, ...] = ()
    reuse: tuple[Reuse, ...] = ()
    recording: Recording | None = field(default=None, repr=False)
    layer_of: dict[fx.Node, int] = field(default_factory=dict, repr=False)

    def module_of(self, layer: int | Layer) -> nn.Module | None:
        """The submodule whose call opens this layer; None where a bare parameter opens it."""
        opener = (self.layers[layer] if isinstance(layer, int) else layer).opener
        return None if opener is None else self.module.get_submodule(opener)


def trace(module: nn.Module, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32) -> Chain:
    """The chain of a module that takes samples of this shape and dtype."""
    skeleton.check(module)
    shape = tuple(shape)
    try:
        return _traced(module, shape, dtype)
    except Untraceable as why:
        return _untraced(module, shape, dtype, str(why))


def _traced(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> Chain:
    recording = record(module, shape, dtype)
    ledger, layer_of = divide(recording)
    notes = [] if recording.both_modes else ["its forward differs in evaluation: stages are for training only"]
    return Chain(
        module=module,
        layers=ledger.close(),
        shape=shape,
        dtype=dtype,
        exact=True,
        note=_note(notes, ledger),
        cuts=cuts(recording, layer_of, ledger.spans),
        reuse=ledger.reuse(),
        recording=recording,
        layer_of=layer_of,
    )


def _untraced(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, why: str) -> Chain:
    try:
        ledger = observed(module, shape, dtype)
        order = "layers are in the order seen in one run, and there is nowhere to cut"
    except Exception as error:  # a user's forward may raise anything
        ledger = listed(module)
        why = f"{why}) nor run on meta tensors ({reason(error)}"
        order = "layers are in the modules' order, without costs or cuts"
    note = _note([f"could not be traced ({why}); {order}"], ledger)
    return Chain(module, ledger.close(), shape, dtype, exact=False, note=note, reuse=ledger.reuse())


def _note(notes: list[str], ledger: Ledger) -> str:
    unused = ledger.unused()
    if unused:
        shown = ", ".join(unused[:3]) + (", …" if len(unused) > 3 else "")
        notes.append(f"{len(unused)} parameters are never used in forward ({shown}) and count to the last layer")
    return "; ".join(notes)

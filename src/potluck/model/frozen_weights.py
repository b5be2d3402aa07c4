"""The tensors that training does not change: frozen parameters and constant buffers, by layer.

They are in neither of a model's two vectors. Every device builds them itself; a digest of their values shows whether
they are the coordinator's. If not, they travel once, as bytes, in messages of a few layers each.

    WeightLayout    params, buffers                     pulled and pushed every turn, saved in checkpoints
    FrozenWeights   frozen parameters, constants        at most once per device; checkpoints hold the digest
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from potluck.errors import ModelError, RunError
from potluck.model.codecs.array_checks import count_refusal
from potluck.model.constant_buffers import is_persistent
from potluck.model.layer_chain import LayerChain
from potluck.model.model_state import WeightLayout
from potluck.payload import Payload

__all__ = ["FrozenWeights", "TensorGuard", "copy_sharing_frozen"]

DIGEST = "frozen"  # the key of the digest in a checkpoint
_MESSAGE_BYTES, _MESSAGE_TENSORS = 32 << 20, 256  # of one message, unless a single layer has more

Range = tuple[int, int]


@dataclass(frozen=True)
class FrozenTensor:
    """One of them; `nbytes` also where it is a meta tensor."""

    name: str
    tensor: Tensor
    may_be_infinite: bool  # masks are: they hold -inf

    @property
    def nbytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    @property
    def description(self) -> str:
        return f"{self.name} {tuple(self.tensor.shape)} {self.tensor.dtype}"


class FrozenWeights:
    """The frozen tensors of one model, in the order of its layers."""

    def __init__(
        self, layers: Sequence[Sequence[FrozenTensor]], sources: Mapping[int, frozenset[int]] | None = None
    ) -> None:
        """`sources` are the layers whose frozen tensors another layer uses again, by that layer."""
        self._layers = layers
        self._sources = sources or {}
        self._digest: str | None = None

    @staticmethod
    def of_chain(chain: LayerChain, layout: WeightLayout) -> FrozenWeights:
        """All that a state dict of the model holds beside the two vectors; other constants are built by its code."""
        params, buffers = dict(chain.module.named_parameters()), dict(chain.module.named_buffers())
        known = layout.names
        sources: dict[int, frozenset[int]] = {}
        for reuse in chain.frozen_reuses:
            sources[reuse.user] = sources.get(reuse.user, frozenset()) | {reuse.owner}
        return FrozenWeights(
            [
                [
                    *(FrozenTensor(name, params[name], False) for name in layer.parameters if name not in known),
                    *(
                        FrozenTensor(name, buffers[name], True)
                        for name in layer.buffers
                        if name not in known and is_persistent(chain.module, name)
                    ),
                ]
                for layer in chain.layers
            ],
            sources,
        )

    @property
    def layer_count(self) -> int:
        return len(self._layers)

    @property
    def nbytes(self) -> int:
        return self.range_bytes(0, self.layer_count - 1)

    @property
    def message_bytes(self) -> int:
        """The most that one message of them takes."""
        return max((self.range_bytes(*part) for part in self.message_ranges(self.layers_with_weights())), default=0)

    def range_bytes(self, first: int, last: int) -> int:
        """The bytes of the layers `first` to `last`."""
        return sum(frozen.nbytes for frozen in self._range_tensors(first, last))

    def layers_with_weights(self) -> list[int]:
        """The layers that have frozen tensors."""
        return [layer for layer, tensors in enumerate(self._layers) if tensors]

    def layers_needed(self, first: int, last: int) -> set[int]:
        """The layers whose frozen tensors the layers `first` to `last` use."""
        own = range(first, last + 1)
        return {*own, *(source for layer in own for source in self._sources.get(layer, ()))}

    def message_ranges(self, layers: Iterable[int]) -> list[Range]:
        """Those of these layers that have frozen tensors, as ranges that are small enough for one message each."""
        wanted, ranges = set(layers), list[Range]()
        is_adjacent = False
        for layer in self.layers_with_weights():
            if layer in wanted and is_adjacent and self._fits_message(ranges[-1][0], layer):
                ranges[-1] = (ranges[-1][0], layer)
            elif layer in wanted:
                ranges.append((layer, layer))
            is_adjacent = layer in wanted
        return ranges

    def _fits_message(self, first: int, last: int) -> bool:
        tensors = self._range_tensors(first, last)
        return sum(frozen.nbytes for frozen in tensors) <= _MESSAGE_BYTES and len(tensors) <= _MESSAGE_TENSORS

    def digest(self) -> str:
        """A hash of the names, shapes, dtypes and values; empty if there are none."""
        if self._digest is None:
            self._digest = "" if not self.nbytes or self._is_meta else self._hash_values()
        return self._digest

    def structure_digest(self) -> str:
        """A hash of the names, shapes and dtypes by layer."""
        described = [[frozen.description for frozen in tensors] for tensors in self._layers]
        return hashlib.sha256(repr(described).encode()).hexdigest()

    def _hash_values(self) -> str:
        total = hashlib.sha256()
        for frozen in self._range_tensors(0, self.layer_count - 1):
            total.update(frozen.description.encode())
            total.update(memoryview(_to_bytes(frozen.tensor)))
        return total.hexdigest()

    # --- transfer --------------------------------------------------------------------------------------------------

    def pack_layers(self, first: int, last: int) -> Payload:
        """The bytes of some layers, ready to be sent; sizes only where the model is meta."""
        tensors = self._range_tensors(first, last)
        arrays = () if self._is_meta else tuple(_to_bytes(frozen.tensor) for frozen in tensors)
        return Payload(sum(frozen.nbytes for frozen in tensors), arrays)

    def layers_refusal(self, first: int, last: int, payload: Payload) -> str | None:
        """Why this cannot be the frozen weights of these layers; None if it can."""
        if self._is_meta:
            return None
        tensors = self._range_tensors(first, last)
        if why := count_refusal(payload.arrays, len(tensors)):
            return why
        for frozen, array in zip(tensors, payload.arrays, strict=True):
            if array.dtype != np.uint8 or array.shape != (frozen.nbytes,):
                return f"its {frozen.name!r} is {array.dtype} of shape {array.shape}, not {frozen.nbytes} bytes"
            if not _has_valid_values(_from_bytes(array, frozen.tensor), frozen.may_be_infinite):
                return f"its {frozen.name!r} is not finite"
        return None

    def load_layers(self, first: int, last: int, payload: Payload) -> None:
        """Load the frozen weights of some layers in place, so that all copies that share them have them."""
        if self._is_meta:
            return
        self._digest = None
        for frozen, array in zip(self._range_tensors(first, last), payload.arrays, strict=True):
            received = _from_bytes(array, frozen.tensor)
            if received.data_ptr() != frozen.tensor.data_ptr():  # in one process both sides may share them
                frozen.tensor.data.copy_(received)

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of them: the digest."""
        digest = self.digest()
        return {DIGEST: torch.frombuffer(bytearray.fromhex(digest), dtype=torch.uint8)} if digest else {}

    def check_checkpoint(self, tensors: Mapping[str, Tensor]) -> None:
        """RunError unless a checkpoint was made with these frozen weights."""
        saved, own = tensors.get(DIGEST), self.checkpoint_tensors().get(DIGEST)
        if (saved is None) != (own is None) or (saved is not None and own is not None and not torch.equal(saved, own)):
            raise RunError(
                "the frozen weights of this model are not those that the run was started with; resume with the same"
                " task and the same weights in `start`"
            )

    def _range_tensors(self, first: int, last: int) -> list[FrozenTensor]:
        return [frozen for tensors in self._layers[first : last + 1] for frozen in tensors]

    @property
    def _is_meta(self) -> bool:
        return any(frozen.tensor.is_meta for tensors in self._layers for frozen in tensors)


class TensorGuard:
    """Notices when tensors that were considered constant were changed or replaced; checking costs next to nothing."""

    def __init__(self, module: nn.Module, layout: WeightLayout) -> None:
        known = layout.names
        self._watched: list[tuple[dict[str, Any], str, Tensor, int, str]] = []
        for path, owner in module.named_modules():
            for tensors in (owner._parameters, owner._buffers):
                for name, tensor in tensors.items():
                    full = f"{path}.{name}" if path else name
                    if tensor is not None and full not in known:
                        self._watched.append((tensors, name, tensor, tensor._version, full))
        shared = {id(tensor) for name, tensor in _named_tensors(module) if name in known}
        self._watched = [watched for watched in self._watched if id(watched[2]) not in shared]

    def check(self) -> None:
        """ModelError if one of them has changed."""
        for tensors, name, tensor, version, full in self._watched:
            if tensors[name] is not tensor or tensor._version != version:
                raise ModelError(
                    f"{full!r} changed in training although its first step leaves it alone, so it was not sent;"
                    " list it in an attribute `changing_buffers` of the module that owns it"
                )


def copy_sharing_frozen(module: nn.Module, layout: WeightLayout) -> nn.Module:
    """A deep copy that shares all tensors outside the layout with the original."""
    known = layout.names
    memo: dict[int, Any] = {id(tensor): tensor for name, tensor in _named_tensors(module) if name not in known}
    return copy.deepcopy(module, memo)


def _named_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _to_bytes(tensor: Tensor) -> Any:
    """A tensor's bytes; a view where it is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def _from_bytes(array: Any, like: Tensor) -> Tensor:
    return torch.from_numpy(array).view(like.dtype).reshape(like.shape)


def _has_valid_values(tensor: Tensor, may_be_infinite: bool) -> bool:
    if tensor.dtype == torch.bool:
        return bool((tensor.view(torch.uint8) <= 1).all())
    if not tensor.is_floating_point():
        return True
    return not bool(tensor.isnan().any()) if may_be_infinite else bool(tensor.isfinite().all())

"""Compressed pulls: devices hold a reference model and pull the encoded differences between its versions.

    weights ──▶ encode(weights − reference) ──▶ delta        kept until all deltas together are larger than the model
    reference ──▶ reference + decode(delta)                  on the coordinator and on every device, bit for bit

What a delta leaves out is part of the next difference, so this is error feedback, kept once for all devices. Devices
train from the reference; the coordinator's own weights stay exact. (EF21-P: Gruntkowska, Tyurin and Richtárik 2023,
arXiv:2209.15218.)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from potluck.errors import RunError
from potluck.model.codecs import Codec
from potluck.model.codecs.codec_state import CodecState
from potluck.model.model_state import ModelState, WeightLayout
from potluck.payload import Payload

__all__ = [
    "DELTA_HEADER_BYTES",
    "DeltaFormat",
    "EncodedSegment",
    "HeldModel",
    "PullRequest",
    "PulledSegment",
    "ReferenceModel",
    "join_segments",
]

_HEADER = struct.Struct("<3Bx3I")  # dtypes and sizes of up to three arrays
DELTA_HEADER_BYTES = _HEADER.size
_DTYPES = (np.dtype("u1"), np.dtype("i1"), np.dtype("<f2"), np.dtype("<f4"), np.dtype("<f8"), np.dtype("<i4"))
_PREFIX, _CODEC = "pull.", "pull.codec."  # of the names in a checkpoint


class PullRequest(NamedTuple):
    """The layers of a version that a device asks for, and the version that it holds (0: none; the first one is 1)."""

    first: int
    last: int
    version: int = 1
    held: int = 0


class EncodedSegment(NamedTuple):
    """A segment as it is sent: deltas from version `base` on, or the weights themselves if it is 0."""

    payload: Payload
    base: int = 0


class PulledSegment(NamedTuple):
    """A segment as it was received."""

    first: int
    last: int
    payload: Payload
    version: int = 0
    base: int = 0


@dataclass
class HeldModel:
    """The version that a device holds; the weights are never changed in place, and None where only time is modelled."""

    version: int = 0
    params: Tensor | None = None


@dataclass(frozen=True)
class DeltaFormat:
    """How a difference is encoded: each unit of layers by itself, so that a segment may begin at any of them."""

    codec: Codec
    layout: WeightLayout
    units: tuple[tuple[int, int], ...]  # first and last layer, in order

    @staticmethod
    def for_transfers(codec: Codec, layout: WeightLayout, cut: bool) -> DeltaFormat:
        """One unit for each layer that has weights where transfers are cut, else one for the whole model."""
        if not cut:
            return DeltaFormat(codec, layout, ((0, layout.layer_count - 1),))
        bounds = layout.param_bounds
        layers = [layer for layer in range(layout.layer_count) if bounds[layer] < bounds[layer + 1]]
        return DeltaFormat(codec, layout, tuple((layer, layer) for layer in layers))

    def slice_of(self, unit: int) -> slice:
        return self.layout.layer_slices(*self.units[unit])[0]

    def units_in(self, first: int, last: int) -> list[int] | None:
        """The units of these layers; None if they do not consist of whole ones."""
        inside = [index for index, (start, end) in enumerate(self.units) if first <= start and end <= last]
        params, _ = self.layout.layer_slices(first, last)
        covered = sum(self.slice_of(unit).stop - self.slice_of(unit).start for unit in inside)
        return inside if covered == params.stop - params.start else None

    def unit_bytes(self) -> list[int]:
        """The expected size of each unit's part of a delta."""
        return [DELTA_HEADER_BYTES + self.codec.segment_bytes(self.layout, *unit) for unit in self.units]

    def encode_unit(self, difference: Tensor, state: CodecState | None, entries: slice) -> Any:
        """A unit of a delta as bytes."""
        arrays = [np.ascontiguousarray(array) for array in self.codec.encode(difference, state, entries).arrays]
        codes = [_DTYPES.index(array.dtype) + 1 for array in arrays] + [0] * (3 - len(arrays))
        header = _HEADER.pack(*codes, *(array.size for array in arrays), *[0] * (3 - len(arrays)))
        return np.concatenate(
            [np.frombuffer(header, np.uint8), *(array.reshape(-1).view(np.uint8) for array in arrays)]
        )

    def decode_unit(self, encoded: Any, size: int) -> tuple[Tensor, int]:
        """The difference of a unit of `size` weights, and how many bytes it takes; RunError if it is none."""
        arrays, offset = [], DELTA_HEADER_BYTES
        if encoded.size < offset:
            raise RunError("the coordinator sent a delta that ends too early")
        *codes, first, second, third = _HEADER.unpack(encoded[:offset].tobytes())
        for code, count in zip(codes, (first, second, third), strict=True):
            if code:
                dtype = _DTYPES[min(code, len(_DTYPES)) - 1]
                stop = offset + count * dtype.itemsize
                arrays.append(encoded[offset:stop].copy().view(dtype) if stop <= encoded.size else None)
                offset = stop
        payload = Payload(0, tuple(arrays))
        reason = self.codec.payload_refusal(payload, size)
        if reason is not None:
            raise RunError(f"the coordinator sent a delta that cannot be used: {reason}")
        return self.codec.decode(payload, size).to(self.layout.dtype), offset

    # --- on a device -----------------------------------------------------------------------------------------------

    def decode_segment(self, held: HeldModel, segment: PulledSegment) -> Payload:
        """The weights and buffers of a segment; what a device holds plus the deltas, if it consists of those."""
        if not segment.base:
            return segment.payload
        encoded, buffers = segment.payload.arrays
        units = self.units_in(segment.first, segment.last)
        if held.params is None or segment.base != held.version or units is None:
            raise RunError(f"the coordinator sent deltas from version {segment.base}, but {held.version} is held")
        params, _ = self.layout.layer_slices(segment.first, segment.last)
        weights, offset = held.params[params].clone(), 0
        for _ in range(segment.version - segment.base):
            for unit in units:
                entries = self.slice_of(unit)
                difference, used = self.decode_unit(encoded[offset:], entries.stop - entries.start)
                weights[entries.start - params.start : entries.stop - params.start] += difference
                offset += used
        return Payload(segment.payload.nbytes, (weights.numpy(), buffers))


@dataclass
class ReferenceModel:
    """The newest version that devices hold or pull, and the deltas that lead to it."""

    format: DeltaFormat
    params: Tensor
    version: int = 1
    deltas: dict[int, list[Any]] = field(default_factory=dict)  # by the version that they lead to: bytes by unit

    def __post_init__(self) -> None:
        self._codec_state = self.format.codec.new_state(self.format.layout)
        self._use_own_feedback()

    def _use_own_feedback(self) -> None:
        """What a codec leaves out is in the next difference already."""
        if self._codec_state is not None:
            self._codec_state.keeps_residual = False

    def advance(self, weights: Tensor) -> None:
        """Make the next version of the reference, closer to these weights."""
        params, encoded = self.params.clone(), []
        for unit in range(len(self.format.units)):
            entries = self.format.slice_of(unit)
            encoded.append(self.format.encode_unit(weights[entries] - params[entries], self._codec_state, entries))
            params[entries] += self.format.decode_unit(encoded[-1], entries.stop - entries.start)[0]
        self.params, self.version = params, self.version + 1
        self.deltas[self.version] = encoded
        total = sum(part.size for parts in self.deltas.values() for part in parts)
        while total > self.params.nbytes:
            total -= sum(part.size for part in self.deltas.pop(min(self.deltas)))

    def encode_segment(self, state: ModelState, request: PullRequest) -> EncodedSegment:
        """Some layers of a version: the deltas since the version that a device holds, or all weights if smaller."""
        params, buffers = self.format.layout.layer_slices(request.first, request.last)
        dense, kept = state.params[params].numpy(), state.buffers[buffers].numpy()
        versions, units = (
            range(request.held + 1, request.version + 1),
            self.format.units_in(request.first, request.last),
        )
        if 0 < request.held <= request.version and units is not None and all(one in self.deltas for one in versions):
            parts = [self.deltas[version][unit] for version in versions for unit in units]
            encoded = np.concatenate([np.zeros(0, np.uint8), *parts])
            if encoded.nbytes < dense.nbytes:
                return EncodedSegment(Payload(encoded.nbytes + kept.nbytes, (encoded, kept)), request.held)
        return EncodedSegment(Payload(dense.nbytes + kept.nbytes, (dense, kept)))

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must contain, by name."""
        deltas = {
            f"{_PREFIX}delta.{version}.{unit}": torch.from_numpy(part)
            for version, parts in self.deltas.items()
            for unit, part in enumerate(parts)
        }
        codec = {} if self._codec_state is None else self._codec_state.to_tensors()
        named = {_CODEC + name: tensor for name, tensor in codec.items()}
        own = {_PREFIX + "reference": self.params, _PREFIX + "version": torch.tensor([self.version])}
        return {**own, **deltas, **named}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The reverse of `tensors`."""
        self.params, self.version = tensors[_PREFIX + "reference"], int(tensors[_PREFIX + "version"])
        prefix, units = _PREFIX + "delta.", range(len(self.format.units))
        versions = {int(name.removeprefix(prefix).split(".")[0]) for name in tensors if name.startswith(prefix)}
        self.deltas = {
            version: [tensors[f"{prefix}{version}.{unit}"].numpy() for unit in units] for version in sorted(versions)
        }
        if self._codec_state is not None:
            own = {name.removeprefix(_CODEC): one for name, one in tensors.items() if name.startswith(_CODEC)}
            self._codec_state = CodecState.from_tensors(own)
            self._use_own_feedback()


def join_segments(segments: Sequence[tuple[int, int, Payload]]) -> Tensor:
    """The parameters of all layers."""
    return torch.cat(
        [torch.from_numpy(payload.arrays[0]) for _, _, payload in sorted(segments, key=lambda one: one[0])]
    )

"""What training a model's layers costs, in operations and bytes: the only module with these formulas."""

from __future__ import annotations

from potluck.model.codecs import Codec, DenseCodec
from potluck.model.flop_counter import FLOPS_PER_MAC
from potluck.model.model_state import WeightLayout

__all__ = ["BACKWARD_PER_FORWARD", "backward_flops", "forward_flops", "pull_bytes", "push_bytes"]

# A backward pass computes two products of the forward's size: for the weights and for the input.
BACKWARD_PER_FORWARD = 2.0


def forward_flops(macs: float) -> float:
    """Floating-point operations of a forward pass."""
    return float(FLOPS_PER_MAC * macs)


def backward_flops(macs: float) -> float:
    """Floating-point operations of the backward pass that belongs to a forward pass of this many MACs."""
    return BACKWARD_PER_FORWARD * forward_flops(macs)


def pull_bytes(layout: WeightLayout, codec: Codec | None = None) -> list[int]:
    """Bytes of each layer's weights and buffers as a device receives them, compressed if there is a codec for it."""
    if codec is None or isinstance(codec, DenseCodec):
        return [layout.segment_bytes(layer, layer) for layer in range(layout.layer_count)]
    return push_bytes(layout, codec)


def push_bytes(layout: WeightLayout, codec: Codec) -> list[int]:
    """Bytes of each layer's update as a device sends it: parameters encoded, buffers as they are."""
    sizes = []
    for layer in range(layout.layer_count):
        _, buffers = layout.layer_slices(layer, layer)
        sizes.append(codec.segment_bytes(layout, layer, layer) + (buffers.stop - buffers.start) * layout.itemsize)
    return sizes

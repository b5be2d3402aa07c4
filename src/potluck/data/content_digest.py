"""A digest of all values of samples in memory: about a tenth of a second per gigabyte."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import xxhash
from torch import Tensor

__all__ = ["digest_tensors"]

_MAX_BYTES = 16 << 30  # more than this is hardly in memory: a tensor may be backed by a file
_PIECE_BYTES = 16 << 20


def digest_tensors(tensors: Sequence[Tensor]) -> str | None:
    """Equal for tensors of equal dtypes, shapes and bits, wherever they are; None where they are too large to read."""
    if sum(tensor.nbytes for tensor in tensors) > _MAX_BYTES:
        return None
    total = xxhash.xxh3_128()
    for tensor in tensors:
        total.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        rows = max(1, _PIECE_BYTES * len(tensor) // max(1, tensor.nbytes)) if len(tensor) else 1
        for start in range(0, len(tensor), rows):
            piece = tensor[start : start + rows].detach().cpu().contiguous()
            total.update(piece.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()

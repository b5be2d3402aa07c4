"""Normalisation that does not mind skewed batches: group norm in place of batch norm.

Where each device's batch holds few classes, batch norm takes out the very difference between the classes: its
statistics are the class's own in training and everyone's in evaluation. Group norm looks at one sample at a time, so
nothing has to be shared, and the mean of all devices' gradients is again the gradient of one large balanced batch.
"""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["has_batch_norm", "replace_batch_norms"]


def has_batch_norm(module: nn.Module) -> bool:
    return any(isinstance(layer, _BatchNorm) for layer in module.modules())


def replace_batch_norms(module: nn.Module, width: int = 8) -> nn.Module:
    """A copy of the module with every batch norm replaced; a group has about `width` channels, at least two groups.

    Scale and shift are taken over, so that a trained network is a fair start.
    """
    module = copy.deepcopy(module)
    if isinstance(module, _BatchNorm):
        return _to_group_norm(module, width)
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, _BatchNorm):
                setattr(parent, name, _to_group_norm(layer, width))
    return module


def _to_group_norm(norm: _BatchNorm, width: int) -> nn.GroupNorm:
    channels = norm.num_features
    found = nn.GroupNorm(_group_count(channels, width), channels, norm.eps, norm.affine)
    if norm.affine:
        found.weight, found.bias = norm.weight, norm.bias
    return found


def _group_count(channels: int, width: int) -> int:
    """The divisor of the channels that comes closest to groups of this width; a lone channel is its own group."""
    divisors = [count for count in range(1, channels + 1) if channels % count == 0]
    wanted = max(channels / width, 2)
    return min(divisors, key=lambda count: (abs(count - wanted), count))

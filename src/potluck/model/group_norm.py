"""Replaces batch norm by group norm, which works with skewed batches.

Where each device's batch has few classes, batch norm removes the very difference between the classes: its
statistics are those of the batch's classes in training and of all classes in evaluation. Group norm looks at one
sample at a time, so the mean of all devices' gradients is again the gradient of one large balanced batch.
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

    Scale and shift are kept, so a trained network remains a reasonable start.
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
    group_norm = nn.GroupNorm(_group_count(channels, width), channels, norm.eps, norm.affine)
    if norm.affine:
        group_norm.weight, group_norm.bias = norm.weight, norm.bias
    return group_norm


def _group_count(channels: int, width: int) -> int:
    """The divisor of the channels that comes closest to groups of this width, preferably two or more groups."""
    divisors = [count for count in range(1, channels + 1) if channels % count == 0]
    wanted = max(channels / width, 2)
    return min(divisors, key=lambda count: (abs(count - wanted), count))

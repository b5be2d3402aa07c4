"""Turns a group's logits into logits that can be compared between groups.

A group's softmax over (its classes, other) is invariant to shifting all its logits, so the largest of all groups'
logits says little. What can be compared is the probability that a group gives to a class, which needs the "other"
logit. Groups train with as many own samples as others, but at inference others are more frequent by (C - k) to k:
adding the logarithm of that to the "other" logit corrects the probabilities for this prior (Bayes), and their
logarithms are the logits of the assembled network.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["GroupReadout"]


class GroupReadout(nn.Module):
    """A group's final logits; calibration may set `scale`, `shift` and `offset`, training sets `trained`."""

    changing_buffers = ("scale", "shift", "offset", "trained")

    def __init__(self, own: int, classes: int, normalised: bool = True) -> None:
        super().__init__()
        self.normalised = normalised
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("shift", torch.full((), math.log((classes - own) / own) if own < classes else 0.0))
        self.register_buffer("offset", torch.zeros(()))
        self.register_buffer("trained", torch.zeros(()))
        self.scale: Tensor
        self.shift: Tensor
        self.offset: Tensor
        self.trained: Tensor

    def forward(self, outputs: Tensor, raw: bool = False) -> Tensor:
        """Logits of the group's classes, -inf while they are untrained; `raw`: including "other", for training."""
        if raw:
            if self.training:
                self.trained.fill_(1.0)
            return outputs
        logits = comparable_logits(outputs, self.scale, self.shift, self.offset, self.normalised)
        return logits.masked_fill(self.trained == 0, -math.inf)


def comparable_logits(outputs: Tensor, scale: Tensor, shift: Tensor, offset: Tensor, normalised: bool = True) -> Tensor:
    """The logits of a group's classes from all its outputs, the last of which is "other"."""
    scaled = outputs * scale
    own, other = scaled[:, :-1], scaled[:, -1:] + shift
    if not normalised:
        return own + offset
    return own - torch.cat([own, other], dim=1).logsumexp(dim=1, keepdim=True) + offset

"""A loss for devices whose classes are skewed: no raw data, not even label counts, leaves the device.

A device that trains for a while on few classes learns to answer with those whatever it sees. Adding the logarithm of
each class's frequency on this device to the scores takes that reward away (logit adjustment, Menon et al. 2021;
FedLC, Zhang et al. 2022). A device that holds its data knows how often it has each class; one whose data streams in
goes by each mini-batch. It is for local steps on classes that are rare: where a class is missing altogether it also
takes away what tells it apart. A single gradient per round needs none of this, see `norms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potluck.settings import Part, doc

__all__ = [
    "DeviceSkewCorrection",
    "LogitAdjustment",
    "NoSkewCorrection",
    "RestrictedSoftmax",
    "SkewCorrection",
    "class_frequencies",
]

Loss = Callable[[Tensor, Tensor], Tensor]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class SkewCorrection(Part, frozen=True, kw_only=True):
    """Changes a device's loss to offset its own class frequencies, which never leave the device."""

    def corrected_loss(self, loss: Loss, shares: Tensor) -> Loss:
        """The task's loss as this device should use it; `shares` says how often it sees each class."""
        raise NotImplementedError


class NoSkewCorrection(SkewCorrection, frozen=True, kw_only=True, tag="none"):
    """The task's loss as it is."""

    def corrected_loss(self, loss: Loss, shares: Tensor) -> Loss:
        return loss


class LogitAdjustment(SkewCorrection, frozen=True, kw_only=True, tag="adjusted"):
    """Adds strength · log(class frequency) to the logits (Menon et al. 2021, FedLC)."""

    strength: Annotated[float, msgspec.Meta(ge=0.0), doc("Factor on the logarithm.")] = 0.5
    unseen: Annotated[
        float, msgspec.Meta(gt=0.0, lt=1.0), doc("Frequency assumed for a class that the device does not have.")
    ] = 1e-3

    def corrected_loss(self, loss: Loss, shares: Tensor) -> Loss:
        shift = self.strength * shares.clamp_min(self.unseen).log()
        return lambda scores, targets: loss(scores + shift, targets)


class RestrictedSoftmax(SkewCorrection, frozen=True, kw_only=True, tag="restricted"):
    """Scales the logits of classes that the device does not have (FedRS)."""

    factor: Annotated[Share, doc("Factor on these logits.")] = 0.5

    def corrected_loss(self, loss: Loss, shares: Tensor) -> Loss:
        scale = torch.where(shares > 0, 1.0, self.factor)
        return lambda scores, targets: loss(scores * scale, targets)


def class_frequencies(labels: npt.NDArray[np.int64], classes: int) -> Tensor:
    """How often each class occurs, as shares of one."""
    counts = torch.from_numpy(np.bincount(labels, minlength=classes)).to(torch.float32)
    return counts / counts.sum().clamp_min(1)


class DeviceSkewCorrection:
    """A job's choice, and what each of its devices knows of its own data; None where that streams in."""

    def __init__(self, skew: SkewCorrection, shares: Mapping[str, Tensor] | None) -> None:
        self._skew = skew
        self._shares = shares

    def device_loss(self, device: str, loss: Loss) -> Loss:
        if self._shares is not None:
            return self._skew.corrected_loss(loss, self._shares[device])
        return lambda scores, targets: self._loss_by_batch(loss, scores, targets)

    def _loss_by_batch(self, loss: Loss, scores: Tensor, targets: Tensor) -> Tensor:
        return self._skew.corrected_loss(loss, class_frequencies(targets.numpy(), scores.shape[1]))(scores, targets)

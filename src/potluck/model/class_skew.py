"""Corrects the loss on devices with skewed classes. Neither raw data nor label counts leave the device.

A device that trains for a while on few classes learns to predict those whatever it sees. Adding the logarithm of
each class's frequency on this device to the scores removes that incentive (logit adjustment, Menon et al. 2021;
FedLC, Zhang et al. 2022). A device that stores its data knows the frequency of each class; one with streaming data
uses each mini-batch's. The correction is for local steps on rare classes: where a class is missing altogether, it
also removes what distinguishes it. A single gradient per round needs none of this, see `group_norm`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potluck.model.model_replica import Loss
from potluck.settings import Part, doc

__all__ = [
    "DeviceSkewCorrection",
    "LogitAdjustment",
    "NoSkewCorrection",
    "RestrictedSoftmax",
    "SkewCorrection",
    "class_frequencies",
]


Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class SkewCorrection(Part, frozen=True, kw_only=True):
    """Changes a device's loss to offset its own class frequencies, which never leave the device."""

    def corrected_loss(self, loss: Loss, frequencies: Tensor) -> Loss:
        """The task's loss as this device should use it; `frequencies` are those of each class on it."""
        raise NotImplementedError


class NoSkewCorrection(SkewCorrection, frozen=True, kw_only=True, tag="none"):
    """The task's loss as it is."""

    def corrected_loss(self, loss: Loss, frequencies: Tensor) -> Loss:
        return loss


class LogitAdjustment(SkewCorrection, frozen=True, kw_only=True, tag="adjusted"):
    """Adds strength · log(class frequency) to the logits (Menon et al. 2021, FedLC)."""

    strength: Annotated[float, msgspec.Meta(ge=0.0), doc("Factor on the logarithm.")] = 0.5
    unseen: Annotated[
        float, msgspec.Meta(gt=0.0, lt=1.0), doc("Frequency assumed for a class that the device does not have.")
    ] = 1e-3

    def corrected_loss(self, loss: Loss, frequencies: Tensor) -> Loss:
        shift = self.strength * frequencies.clamp_min(self.unseen).log()
        return lambda scores, targets: loss(scores + shift, targets)


class RestrictedSoftmax(SkewCorrection, frozen=True, kw_only=True, tag="restricted"):
    """Scales the logits of classes that the device does not have (FedRS)."""

    factor: Annotated[Fraction, doc("Factor on these logits.")] = 0.5

    def corrected_loss(self, loss: Loss, frequencies: Tensor) -> Loss:
        scale = torch.where(frequencies > 0, 1.0, self.factor)
        return lambda scores, targets: loss(scores * scale, targets)


def class_frequencies(labels: npt.NDArray[np.int64], classes: int) -> Tensor:
    """How often each class occurs, as fractions that add up to one."""
    counts = torch.from_numpy(np.bincount(labels, minlength=classes)).to(torch.float32)
    return counts / counts.sum().clamp_min(1)


class DeviceSkewCorrection:
    """A job's skew correction with each device's class frequencies; None where data streams in."""

    def __init__(self, skew: SkewCorrection, frequencies: Mapping[str, Tensor] | None) -> None:
        self._skew = skew
        self._frequencies = frequencies

    def device_loss(self, device: str, loss: Loss) -> Loss:
        if self._frequencies is not None:
            return self._skew.corrected_loss(loss, self._frequencies[device])
        return lambda scores, targets: self._loss_by_batch(loss, scores, targets)

    def _loss_by_batch(self, loss: Loss, scores: Tensor, targets: Tensor) -> Tensor:
        return self._skew.corrected_loss(loss, class_frequencies(targets.numpy(), scores.shape[1]))(scores, targets)

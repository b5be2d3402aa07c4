"""A device's work on its sub-model without a loop around it: plain SGD, on inputs or on a frozen trunk's features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from potluck.model.decoupled.group_loss import GroupLoss
from potluck.model.decoupled.grouped_network import GroupSubmodel

__all__ = ["fit", "trunk_features"]

Batch = tuple[Tensor, Tensor]


@torch.no_grad()
def trunk_features(trunk: nn.Module, batches: Iterable[Batch]) -> Batch:
    """What a trunk makes of the inputs, once and for all, and the labels."""
    mode = trunk.training
    trunk.eval()
    pairs = [(trunk(inputs), labels) for inputs, labels in batches]
    trunk.train(mode)
    return torch.cat([features for features, _ in pairs]), torch.cat([labels for _, labels in pairs])


def fit(
    submodel: GroupSubmodel,
    loss: GroupLoss,
    batches: Iterable[Batch],
    *,
    lr: Callable[[int], float],
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    from_features: bool = False,
) -> Iterator[float]:
    """Train step by step, `lr` of the step's number; gives the loss after each. Nothing happens until it is asked."""
    trained = [parameter for parameter in submodel.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=lr(0), momentum=momentum, weight_decay=weight_decay)
    submodel.train()
    for step, (inputs, labels) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = lr(step)
        optimizer.zero_grad()
        found = loss(submodel.forward_features(inputs) if from_features else submodel(inputs), labels)
        found.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield float(found.detach())

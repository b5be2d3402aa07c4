from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from potluck.model.class_skew import (
    LogitAdjustment,
    NoSkewCorrection,
    RestrictedSoftmax,
    SkewCorrection,
    class_frequencies,
)
from potluck.model.group_norm import has_batch_norm, replace_batch_norms
from potluck.settings import decode_settings

_LABELS = np.array([0, 0, 0, 1, 2, 2])


def _gradient(skew: SkewCorrection, labels: np.ndarray[tuple[int], np.dtype[np.int64]]) -> torch.Tensor:
    """The gradient of the mean loss at uninformative scores."""
    scores = torch.zeros(len(labels), 4, requires_grad=True)
    loss = skew.corrected_loss(cross_entropy, class_frequencies(labels, 4))
    (gradient,) = torch.autograd.grad(loss(scores, torch.from_numpy(labels)), scores)
    return gradient.sum(0)


def test_frequencies_sum_to_one() -> None:
    assert class_frequencies(_LABELS, 4).tolist() == torch.tensor([3 / 6, 1 / 6, 2 / 6, 0]).tolist()
    assert class_frequencies(np.zeros(0, np.int64), 3).tolist() == [0, 0, 0]


def test_logit_adjustment_removes_the_gradient_of_class_frequency() -> None:
    """Plain cross-entropy first learns the class frequencies; with adjustment that gradient nearly vanishes."""
    plain, adjusted = _gradient(NoSkewCorrection(), _LABELS), _gradient(LogitAdjustment(strength=1.0), _LABELS)
    assert plain.abs().max() > 0.2
    assert adjusted.abs().max() < 0.01


def test_a_balanced_device_is_unaffected() -> None:
    labels = np.arange(40) % 4
    torch.testing.assert_close(_gradient(LogitAdjustment(), labels), _gradient(NoSkewCorrection(), labels))
    torch.testing.assert_close(_gradient(RestrictedSoftmax(), labels), _gradient(NoSkewCorrection(), labels))


def test_restricted_softmax_pushes_absent_classes_down_less() -> None:
    plain, restricted = _gradient(NoSkewCorrection(), _LABELS), _gradient(RestrictedSoftmax(factor=0.25), _LABELS)
    assert 0 < restricted[3] < 0.5 * plain[3]


def test_a_skew_correction_can_be_decoded_from_settings() -> None:
    assert decode_settings({"kind": "adjusted", "strength": 2}, SkewCorrection) == LogitAdjustment(strength=2.0)
    assert decode_settings("none", SkewCorrection) == NoSkewCorrection()


def _network() -> nn.Module:
    inner = nn.Sequential(nn.Conv2d(12, 20, 3), nn.BatchNorm2d(20))
    return nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), inner, nn.Flatten(), nn.LazyLinear(5))


def test_every_batch_norm_is_replaced_in_a_copy() -> None:
    module = _network()
    module(torch.zeros(2, 3, 8, 8))
    changed = replace_batch_norms(module)
    assert has_batch_norm(module)
    assert not has_batch_norm(changed)
    groups = [layer.num_groups for layer in changed.modules() if isinstance(layer, nn.GroupNorm)]
    assert groups == [2, 2]
    assert [tuple(p.shape) for p in changed.parameters()] == [tuple(p.shape) for p in module.parameters()]
    assert changed(torch.randn(1, 3, 8, 8)).shape == (1, 5), "a batch of one is no trouble any more"


def test_scale_and_shift_are_copied() -> None:
    norm = nn.BatchNorm2d(16)
    nn.init.uniform_(norm.weight)
    changed = replace_batch_norms(norm)
    assert isinstance(changed, nn.GroupNorm)
    assert changed.weight.tolist() == norm.weight.tolist()


def test_skewed_batches_add_up_to_a_balanced_one() -> None:
    """With batch norm they do not, which is why training with one class per device stalls."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))
    inputs = torch.randn(32, 1, 8, 8) + torch.arange(2).repeat_interleave(16).view(32, 1, 1, 1)
    targets = torch.arange(2).repeat_interleave(16)

    def mean_of_devices(network: nn.Module) -> torch.Tensor:
        return (_flat(network, inputs[:16], targets[:16]) + _flat(network, inputs[16:], targets[16:])) / 2

    grouped = replace_batch_norms(module)
    torch.testing.assert_close(mean_of_devices(grouped), _flat(grouped, inputs, targets), rtol=1e-4, atol=1e-6)
    balanced = _flat(module, inputs, targets)
    assert (mean_of_devices(module) - balanced).norm() > 0.3 * balanced.norm()


def _flat(network: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    loss = cross_entropy(network(inputs), targets)
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(network.parameters()))])

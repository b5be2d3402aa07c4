"""Frozen weights: their digest, their transfer as bytes, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from potluck.errors import RunError
from potluck.model import frozen_weights
from potluck.model.frozen_weights import FrozenWeights
from potluck.model.layer_chain import trace_layers
from potluck.model.model_replica import ModelReplica
from potluck.model.model_state import WeightLayout
from potluck.payload import Payload


class Mixed(nn.Module):
    """Frozen tensors of several dtypes beside one trained layer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.trunk = nn.Linear(4, 4).to(torch.bfloat16).requires_grad_(False)
        self.codes = nn.Parameter(torch.randint(-9, 9, (4, 4), dtype=torch.int8), requires_grad=False)
        self.head = nn.Linear(4, 2)
        self.register_buffer("mask", torch.full((4,), -torch.inf))
        self.register_buffer("kept", torch.tensor(True))
        self.mask: torch.Tensor
        self.kept: torch.Tensor

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.trunk(inputs.to(torch.bfloat16)).float() @ self.codes.float()
        return self.head(hidden.masked_fill(self.mask.isfinite() & self.kept, 0.0))  # type: ignore[no-any-return]


def _frozen(module: nn.Module) -> FrozenWeights:
    chain = trace_layers(module, (4,))
    return FrozenWeights.of_chain(chain, WeightLayout.of_chain(chain))


def test_only_trained_parameters_are_in_the_vectors_whatever_the_dtype_of_the_others() -> None:
    chain = trace_layers(Mixed(), (4,))
    layout = WeightLayout.of_chain(chain)
    assert layout.names == {"head.weight", "head.bias"}
    assert layout.dtype == torch.float32
    assert _frozen(Mixed()).nbytes == 2 * (16 + 4) + 16 + 4 * 4 + 1


def test_the_digest_is_of_the_values() -> None:
    assert _frozen(Mixed()).digest() == _frozen(Mixed()).digest()
    assert _frozen(Mixed()).digest() != _frozen(Mixed(seed=1)).digest()
    trained = Mixed()
    with torch.no_grad():
        trained.head.weight.add_(1)
    assert _frozen(trained).digest() == _frozen(Mixed()).digest()
    assert _frozen(nn.Linear(4, 2)).digest() == ""


def test_the_digest_of_the_structure_is_not_of_the_values() -> None:
    assert _frozen(Mixed()).structure_digest() == _frozen(Mixed(seed=1)).structure_digest()
    other = Mixed()
    other.trunk.float()
    assert _frozen(Mixed()).structure_digest() != _frozen(other).structure_digest()


def test_received_weights_equal_the_senders_and_reach_replicas_that_exist_already() -> None:
    sender, receiver = Mixed(), Mixed(seed=1)
    chain = trace_layers(receiver, (4,))
    replica = ModelReplica(receiver, WeightLayout.of_chain(chain), nn.functional.cross_entropy)
    source, target = _frozen(sender), FrozenWeights.of_chain(chain, replica.layout)
    for first, last in source.message_ranges(source.layers_with_weights()):
        payload = source.pack_layers(first, last)
        assert target.layers_refusal(first, last, payload) is None
        target.load_layers(first, last, Payload(payload.nbytes, tuple(array.copy() for array in payload.arrays)))
    assert target.digest() == source.digest()
    assert torch.equal(replica.module.trunk.weight, sender.trunk.weight)  # type: ignore[union-attr,arg-type]
    replica.constants.check()


def test_weights_that_do_not_fit_or_are_not_finite_are_refused() -> None:
    frozen = _frozen(Mixed())
    last = frozen.layer_count - 1
    arrays = frozen.pack_layers(0, last).arrays
    assert "arrays" in str(frozen.layers_refusal(0, last, Payload(0, arrays[:-1])))
    assert "bytes" in str(frozen.layers_refusal(0, last, Payload(0, (arrays[0][:-1], *arrays[1:]))))
    assert "float32" in str(frozen.layers_refusal(0, last, Payload(0, (arrays[0].view(np.float32), *arrays[1:]))))
    broken = Mixed()
    broken.trunk.weight[0, 0] = torch.inf
    assert "'trunk.weight' is not finite" in str(frozen.layers_refusal(0, last, _frozen(broken).pack_layers(0, last)))


def test_messages_are_bounded_and_skip_layers_without_frozen_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(6)))
    for index in (0, 2, 3, 5):
        module[index].requires_grad_(False)
    frozen = _frozen(module)
    assert frozen.message_ranges(range(6)) == [(0, 5)]
    assert frozen.message_ranges([0, 3, 5]) == [(0, 0), (3, 5)]
    monkeypatch.setattr(frozen_weights, "_MESSAGE_BYTES", 128)
    assert frozen.message_ranges(range(6)) == [(0, 2), (3, 5)]
    assert frozen.message_bytes == 128


def test_a_checkpoint_of_other_frozen_weights_is_refused() -> None:
    saved = _frozen(Mixed()).checkpoint_tensors()
    _frozen(Mixed()).check_checkpoint(saved)
    for frozen in (_frozen(Mixed(seed=1)), _frozen(nn.Linear(4, 4))):
        with pytest.raises(RunError, match=r"frozen weights of this model are not those.*`start`"):
            frozen.check_checkpoint(saved)

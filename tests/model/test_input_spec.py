"""How inputs of any nesting become arguments of a model."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from potluck.errors import ModelError
from potluck.model.input_spec import InputSpec, batch_size, call_model


class TwoInputs(nn.Module):
    def forward(self, left: Tensor, right: Tensor, scale: float = 1.0) -> Tensor:
        return left + scale * right


class OneMapping(nn.Module):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["left"] + batch["right"]


class AnyKeywords(nn.Module):
    def forward(self, **inputs: Tensor) -> Tensor:
        return inputs["left"] + inputs["right"]


class OnePair(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0] + pair[1]


LEFT, RIGHT = torch.ones(2, 3), torch.full((2, 3), 2.0)
MAPPING = {"left": LEFT, "right": RIGHT}


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (TwoInputs(), MAPPING),
        (TwoInputs(), {"right": RIGHT, "left": LEFT}),
        (TwoInputs(), (LEFT, RIGHT)),
        (OneMapping(), MAPPING),
        (AnyKeywords(), MAPPING),
        (OnePair(), (LEFT, RIGHT)),
        (OnePair(), [LEFT, RIGHT]),
        (nn.Identity(), LEFT + RIGHT),
    ],
)
def test_inputs_are_passed_as_forward_takes_them(module: nn.Module, inputs: Any) -> None:
    assert torch.equal(call_model(module, inputs), torch.full((2, 3), 3.0))
    assert batch_size(inputs) == 2


def test_a_spec_makes_batches_of_any_size() -> None:
    spec = InputSpec.of_batch({"ids": torch.zeros(4, 5, dtype=torch.int64), "rest": (torch.zeros(4, 2).double(),)})
    meta = spec.meta_batch(3)
    assert meta["ids"].shape == (3, 5)
    assert meta["ids"].dtype == torch.int64
    assert meta["rest"][0].is_meta
    tensors = spec.flatten(spec.zero_batch(2))
    assert spec.unflatten(tensors)["rest"][0] is tensors[1]
    assert spec.with_floats(torch.float32).dtypes == (torch.int64, torch.float32)
    assert spec.with_floats(torch.float64) == spec


def test_inputs_without_a_batch_dimension_are_refused() -> None:
    with pytest.raises(ModelError, match="batch as first dimension"):
        InputSpec.of_batch({"a": torch.tensor(1.0)})
    with pytest.raises(ModelError, match="got a str"):
        InputSpec.of_batch(("text", torch.zeros(2)))

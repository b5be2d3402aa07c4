"""Whether what another stage sent is what it should be: told before any of it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from potluck.model.chain import Chain
from potluck.model.codecs.checks import count_refusal, finite
from potluck.model.rehearsal import BATCHES
from potluck.model.slicing import sent

__all__ = ["Form", "crossing", "form_of", "refusal"]


class Form(NamedTuple):
    """What an array must look like."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def form_of(tensor: Tensor) -> Form:
    return Form(tuple(tensor.shape), tensor.dtype)


def crossing(chain: Chain, after: int, samples: int) -> list[Form]:
    """What crosses a cut for so many samples; sizes that grow with the batch are seen at two batch sizes."""
    assert chain.recording is not None
    facts = [chain.recording.facts[node] for node in sent(chain, after)]
    return [Form(_grown(fact.value.shape, fact.other.shape, samples), fact.value.dtype) for fact in facts]


def _grown(small: Sequence[int], large: Sequence[int], samples: int) -> tuple[int, ...]:
    few, many = BATCHES
    return tuple(one + (other - one) * (samples - few) // (many - few) for one, other in zip(small, large, strict=True))


def refusal(arrays: Any, forms: Sequence[Form], name: str) -> str | None:
    """Why these are not arrays of these forms, all finite."""
    if why := count_refusal(arrays, len(forms)):
        return why
    for array, form in zip(arrays, forms, strict=True):
        dtype = str(form.dtype).removeprefix("torch.")
        if array.dtype.name != dtype or not array.dtype.isnative:
            return f"its {name} are {array.dtype}, not {dtype}"
        if array.shape != form.shape:
            return f"its {name} have the shape {array.shape}, not {form.shape}"
        if array.dtype.kind == "f" and not finite(array):
            return f"its {name} are not all finite"
    return None

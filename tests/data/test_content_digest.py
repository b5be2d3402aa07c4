from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from potluck.data import content_digest
from potluck.data.content_digest import digest_tensors
from potluck.data.samples import Samples
from potluck.data.token_blocks import TokenBlocks

VALUES = torch.arange(24, dtype=torch.float32).reshape(6, 4)


def test_equal_tensors_have_equal_digests_wherever_they_lie() -> None:
    transposed = VALUES.t().contiguous().t()
    assert not transposed.is_contiguous()
    assert digest_tensors([transposed]) == digest_tensors([VALUES.clone()])
    padded = torch.zeros(6, 9)
    padded[:, 2:6] = VALUES
    assert digest_tensors([padded[:, 2:6]]) == digest_tensors([VALUES])


CHANGES: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "a bit": lambda values: [torch.where(values == 13.0, 13.000001, values)],
    "order": lambda values: [values.flip(0)],
    "shape": lambda values: [values.reshape(4, 6)],
    "dtype": lambda values: [values.view(torch.int32)],
    "two": lambda values: [values[:3], values[3:]],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_change_gives_another_digest(change: Callable[[Tensor], list[Tensor]]) -> None:
    assert digest_tensors(change(VALUES)) != digest_tensors([VALUES])


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(0, 3), torch.tensor([True, False]), torch.ones(2, dtype=torch.bfloat16), torch.ones(2, 0)],
    ids=["no rows", "bool", "bfloat16", "empty rows"],
)
def test_tensors_of_any_kind_are_digested(tensor: Tensor) -> None:
    assert digest_tensors([tensor]) == digest_tensors([tensor.clone()]) is not None


def test_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = digest_tensors([VALUES])
    monkeypatch.setattr(content_digest, "_PIECE_BYTES", 20)
    assert digest_tensors([VALUES]) == whole


def test_what_is_hardly_in_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_digest, "_MAX_BYTES", VALUES.nbytes - 1)
    assert digest_tensors([VALUES]) is None


def test_owners_and_labels_count_as_content() -> None:
    targets, owner = torch.zeros(6), np.arange(6)
    digests = {
        Samples(VALUES, targets).content_digest(),
        Samples(VALUES, targets, owner=owner).content_digest(),
        Samples(VALUES, targets, owner=owner[::-1].copy()).content_digest(),
        Samples(VALUES, targets, label=owner).content_digest(),
    }
    assert len(digests) >= 3
    assert digests.isdisjoint({None})


def test_the_tokens_and_blocks_of_a_text_are_digested() -> None:
    tokens, offsets = np.arange(20, dtype=np.int32), np.array([0, 4, 8], np.int64)
    digests = [
        TokenBlocks(tokens, offsets, 4).content_digest(),
        TokenBlocks(tokens + 1, offsets, 4).content_digest(),
        TokenBlocks(tokens, offsets + 1, 4).content_digest(),
    ]
    assert len(set(digests)) == 3
    assert TokenBlocks(tokens.copy(), offsets, 4).content_digest() == digests[0]

"""The transformers of the zoo: their size by arithmetic, what each position sees, padding, and that they learn."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from potluck.errors import ModelError
from potluck.model import zoo

TINY = {"vocabulary": 11, "block": 8, "depth": 2, "width": 16, "heads": 4}


def tiny(name: str, **options: object) -> nn.Module:
    torch.manual_seed(0)
    return zoo.build_model(name, **{**TINY, **options})  # type: ignore[arg-type]


def weights(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def test_gpt_has_the_parameters_of_nanogpts_configuration() -> None:
    embeddings, positions, width = 65 * 128, 64 * 128, 128
    block = 2 * width + 3 * width**2 + width**2 + 2 * 4 * width**2
    assert weights(zoo.build_model("gpt")) == embeddings + positions + 4 * block + width == 804_096
    assert weights(zoo.build_model("gpt", tie=False)) == 804_096 + embeddings


@pytest.mark.parametrize("tie", [True, False])
def test_gpt_scores_every_position_from_the_tokens_before_it(tie: bool) -> None:
    model = tiny("gpt", tie=tie)
    tokens = torch.randint(11, (2, 8))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 8, 11)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_a_tied_head_is_the_token_embedding() -> None:
    model = tiny("gpt")
    assert model.get_parameter("head.weight") is model.get_parameter("token.weight")
    assert "head.weight" not in dict(model.named_parameters())


def test_padding_changes_nothing() -> None:
    model = tiny("text-encoder", classes=3)
    text = torch.randint(1, 11, (2, 5))
    padded = functional.pad(text, (0, 3))
    assert torch.allclose(model(text), model(padded), atol=1e-6)
    seen = tiny("text-encoder", classes=3, padding=-1)
    assert not torch.allclose(seen(text), seen(padded), atol=1e-4)


def test_a_text_of_padding_only_has_a_finite_score_and_gradient() -> None:
    model = tiny("text-encoder", classes=3)
    model(torch.zeros(2, 8, dtype=torch.int64)).sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("name", ["gpt", "text-encoder"])
def test_nothing_but_parameters_travels(name: str) -> None:
    assert not list(tiny(name).buffers())


@pytest.mark.parametrize(("name", "dropout"), [("gpt", 0.0), ("gpt", 0.1), ("text-encoder", 0.1)])
def test_steps_lower_the_loss(name: str, dropout: float) -> None:
    model = tiny(name, dropout=dropout)
    tokens = torch.randint(1, 11, (16, 8))
    targets = tokens.roll(-1, 1) if name == "gpt" else tokens[:, 0] % 2
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(tokens).flatten(0, -2), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_dropout_is_off_in_evaluation() -> None:
    model = tiny("gpt", dropout=0.5)
    tokens = torch.randint(11, (2, 8))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpt", {"heads": 3}, "option 'heads': 3 heads cannot share a width of 16 evenly"),
        ("gpt", {"classes": 4}, "model 'gpt' has no option 'classes'; it has vocabulary, block"),
        ("gpt", {"vocabulary": 0}, "option 'vocabulary'"),
        ("text-encoder", {"padding": 11}, "option 'padding': 11 is not in the vocabulary of 11; use one of its tokens"),
    ],
)
def test_wrong_options_are_refused_in_one_line(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        tiny(name, **options)
    assert "\n" not in str(error.value)

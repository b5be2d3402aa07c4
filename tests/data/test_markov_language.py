"""The generated language has the entropy that it claims, whatever is counted, sampled or summed by hand."""

from __future__ import annotations

import hashlib
import itertools
import math

import numpy as np
import pytest

from potluck.data.markov_language import MarkovLanguage


def _language(**options: float) -> MarkovLanguage:
    values = {"vocabulary": 5, "order": 2, "speakers": 3, "skew": 0.4, "ratio": 0.4, "seed": 1} | options
    return MarkovLanguage(**values)  # type: ignore[arg-type]


def _conditional_loss(language: MarkovLanguage, speaker: int, tokens: np.ndarray) -> float:
    """Mean loss of the speaker's true probabilities, and no others, on a text."""
    windows = np.lib.stride_tricks.sliding_window_view(tokens.astype(np.int64), language.order + 1)
    whole = language._log_likelihood(speaker, windows)
    context = language._log_likelihood(speaker, windows[:, :-1])
    return float(np.mean(context - whole))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_true_model_reaches_the_entropy_rate_on_generated_text(order: int) -> None:
    language = _language(order=order)
    for speaker in range(language.speakers):
        tokens = language.generate_tokens(speaker, 60_000)
        assert _conditional_loss(language, speaker, tokens) == pytest.approx(language.entropy_rates[speaker], abs=0.012)


def test_no_counted_model_beats_the_entropy_rate() -> None:
    """Counts of the true order on other text of the speaker come close; shorter contexts stay well above."""
    language = _language()
    tokens = language.generate_tokens(0, 120_000).astype(np.int64)
    losses = []
    for order in (0, 1, 2):
        windows = np.lib.stride_tricks.sliding_window_view(tokens, order + 1)
        counts = np.ones((5,) * (order + 1))
        half = len(windows) // 2
        np.add.at(counts, tuple(windows[:half].T), 1)
        probabilities = counts / counts.sum(axis=-1, keepdims=True)
        losses.append(-float(np.log(probabilities[tuple(windows[half:].T)]).mean()))
    floor = float(language.entropy_rates[0])
    assert losses[0] > losses[1] > losses[2] > floor - 0.01
    assert losses[2] == pytest.approx(floor, abs=0.015)
    assert losses[1] > floor + 0.05


def test_without_skew_the_entropy_is_that_of_the_ranks() -> None:
    language = _language(vocabulary=16, skew=0.0, ratio=0.5)
    assert language.entropy_rates == pytest.approx([2 * math.log(2)] * 3, abs=0.001)  # 1/2, 1/4, 1/8, ...: two bits
    assert np.array_equal(language.generate_tokens(0, 50), language.generate_tokens(0, 80)[:50])


def test_equally_likely_tokens_have_the_entropy_of_the_alphabet() -> None:
    language = _language(vocabulary=4, ratio=1.0)
    assert language.entropy_rates == pytest.approx([math.log(4)] * 3)
    assert language.block_entropy(7) == pytest.approx(math.log(4))


def test_the_block_entropy_equals_the_sum_over_all_texts() -> None:
    """For tiny languages, the loss of the ideal model is summed over every possible window."""
    block = 4
    language = _language(vocabulary=3, speakers=1, order=3)
    windows = np.array(list(itertools.product(range(3), repeat=block + 1)))
    probability = np.exp(language._log_likelihood(0, windows))
    assert probability.sum() == pytest.approx(1)
    loss = (language._log_likelihood(0, windows[:, :1]) - language._log_likelihood(0, windows)) / block
    assert language.block_entropy(block) == pytest.approx(float((probability * loss).sum()))
    assert language.block_entropy(1) > language.block_entropy(100) > language.entropy_rates[0]


def test_a_model_that_is_not_told_who_speaks_loses_a_little() -> None:
    language = _language()
    texts = [language.generate_tokens(speaker, 30_000)[: 900 * 33].reshape(-1, 33) for speaker in range(3)]
    loss = language.ideal_loss(np.concatenate(texts).astype(np.int64))
    assert language.block_entropy(32) < loss < language.block_entropy(32) + math.log(3) / 32 + 0.01
    alone = _language(speakers=1)
    assert alone.ideal_loss(texts[0].astype(np.int64)) == pytest.approx(alone.block_entropy(32), abs=0.012)


def test_every_machine_generates_the_same_text() -> None:
    tokens = _language(vocabulary=16).generate_tokens(2, 5000)
    assert hashlib.sha256(tokens.tobytes()).hexdigest()[:16] == "95697ad0d2ea3ae9"
    assert not np.array_equal(tokens, _language(vocabulary=16, seed=2).generate_tokens(2, 5000))

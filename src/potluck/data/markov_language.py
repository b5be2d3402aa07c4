"""A generated language whose entropy is known: next tokens depend on the last `order` tokens and on who speaks.

After every context, one permutation ranks the possible next tokens, and each rank is `ratio` times as likely as the
rank before. A speaker follows the common ranking, or with probability `skew` a ranking of its own. All probabilities
are whole multiples of 2^-32 and are sampled with whole numbers, so that every machine generates the same text.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from potluck import seeds

__all__ = ["MarkovLanguage"]

_UNIT = 2**16
_TOTAL = _UNIT**2
_BURN_IN = 256
_CONVERGED = 1e-14

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MarkovLanguage:
    """The probabilities of one language for each speaker, the text they produce and the entropy it has.

    All entropies are in nats per token, as a cross-entropy loss is; its exponential is the perplexity.
    """

    vocabulary: int
    order: int
    speakers: int
    skew: float
    ratio: float
    seed: int

    @property
    def contexts(self) -> int:
        return int(self.vocabulary**self.order)

    def generate_tokens(self, speaker: int, count: int) -> npt.NDArray[np.uint8]:
        """The first `count` tokens of a speaker's text; a longer text begins with a shorter one."""
        steps = self._table(speaker).cumsum(axis=1).tolist()
        draws = self._random("text", speaker).randint(0, _TOTAL, count + _BURN_IN, dtype=np.int64)
        context, keep = 0, self.contexts // self.vocabulary
        tokens = bytearray()
        for draw in draws.tolist():
            token = bisect_right(steps[context], draw)
            tokens.append(token)
            context = context % keep * self.vocabulary + token
        return np.frombuffer(bytes(tokens[_BURN_IN:]), np.uint8)

    @cached_property
    def entropy_rates(self) -> Floats:
        """Each speaker's entropy per token, given all that was said before."""
        rates = [
            -float((context[:, None] * table * np.log(table)).sum())
            for context, table in zip(self._context_probabilities, self._probabilities, strict=True)
        ]
        return np.array(rates)

    def block_entropy(self, block: int) -> float:
        """Mean loss, over a block of predictions, of a model that knows the language and who speaks.

        No model has a lower expected loss. It is above the entropy rate because the first predictions of a block have
        shorter contexts than `order`.
        """
        return float(np.mean([self._speaker_block_entropy(speaker, block) for speaker in range(self.speakers)]))

    def ideal_loss(self, texts: npt.NDArray[np.integer]) -> float:
        """Mean loss, on texts of a block and its last target, of the best model that is not told who speaks."""
        joint = np.stack([self._log_likelihood(speaker, texts) for speaker in range(self.speakers)])
        first = np.stack([self._log_likelihood(speaker, texts[:, :1]) for speaker in range(self.speakers)])
        block = texts.shape[1] - 1
        return float(np.mean(_log_mean_exp(first) - _log_mean_exp(joint)) / block)

    def _speaker_block_entropy(self, speaker: int, block: int) -> float:
        short = [_entropy(self._prefix_probabilities(speaker, length)) for length in range(1, self.order + 1)]
        start = np.diff(short)[:block]
        return float((start.sum() + (block - len(start)) * self.entropy_rates[speaker]) / block)

    def _log_likelihood(self, speaker: int, texts: npt.NDArray[np.integer]) -> Floats:
        """log P(text) for this speaker."""
        known = min(self.order, texts.shape[1])
        context = np.zeros(len(texts), np.int64)
        for position in range(known):
            context = context * self.vocabulary + texts[:, position]
        likelihood: Floats = np.log(self._prefix_probabilities(speaker, known))[context]
        table, keep = np.log(self._probabilities[speaker]), self.contexts // self.vocabulary
        for position in range(known, texts.shape[1]):
            token = texts[:, position]
            likelihood = likelihood + table[context, token]
            context = context % keep * self.vocabulary + token
        return likelihood

    def _prefix_probabilities(self, speaker: int, length: int) -> Floats:
        """The probability of each text of `length` tokens, at most `order`, wherever it occurs."""
        contexts = self._context_probabilities[speaker].reshape(-1, self.vocabulary**length)
        prefixes: Floats = contexts.sum(axis=0)
        return prefixes

    @cached_property
    def _context_probabilities(self) -> list[Floats]:
        """The stationary distribution over contexts, per speaker."""
        return [self._stationary(table) for table in self._probabilities]

    def _stationary(self, table: Floats) -> Floats:
        now = np.full(self.contexts, 1 / self.contexts)
        while True:
            following: Floats = (now[:, None] * table).reshape(self.vocabulary, -1).sum(axis=0)
            if float(np.abs(following - now).sum()) < _CONVERGED * self.contexts:
                return following
            now = following / following.sum()

    @cached_property
    def _probabilities(self) -> list[Floats]:
        return [self._table(speaker) / _TOTAL for speaker in range(self.speakers)]

    def _table(self, speaker: int) -> Counts:
        """How many of 2^32 draws lead from each context to each token."""
        own_part = round(self.skew * _UNIT)
        common, own = self.rank_tokens("common"), self.rank_tokens(speaker) if own_part else 0
        return common * (_UNIT - own_part) + own * own_part

    def rank_tokens(self, *name: object) -> Counts:
        """How many of 2^16 draws each token gets after each context, in the ranking with this name."""
        # A stable sort of uniform draws is a permutation that does not depend on NumPy's version.
        ranks = self._random("ranking", *name).random_sample((self.contexts, self.vocabulary)).argsort(kind="stable")
        return self._rank_counts[ranks]

    @cached_property
    def _rank_counts(self) -> Counts:
        """How many of 2^16 draws each rank gets: at least one, the first rank what is left."""
        weights = np.cumprod(np.full(self.vocabulary, self.ratio)) if self.ratio < 1 else np.ones(self.vocabulary)
        counts = np.maximum((weights / math.fsum(weights) * _UNIT).astype(np.int64), 1)
        counts[0] += _UNIT - counts.sum()
        return counts

    def _random(self, *name: object) -> np.random.RandomState:
        # NumPy guarantees that the legacy generator's stream never changes.
        return np.random.RandomState(seeds.child_seed(self.seed, "markov-language", *name) % 2**32)


def _entropy(probabilities: Floats) -> float:
    return -float((probabilities * np.log(probabilities)).sum())


def _log_mean_exp(values: Floats) -> Floats:
    largest = values.max(axis=0)
    mean: Floats = largest + np.log(np.exp(values - largest).mean(axis=0))
    return mean

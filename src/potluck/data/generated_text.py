"""Generated text: a language whose entropy is known, and texts on topics whose best possible accuracy is known.

Both need nothing but NumPy, and the same options give the same samples on every machine.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Meta

from potluck import seeds
from potluck.data.dataset_source import BUILT_IN, Info, Source
from potluck.data.markov_language import MarkovLanguage
from potluck.data.samples import Dataset, Indices, Samples
from potluck.data.text_tokenizers import CharacterTokenizer
from potluck.data.token_blocks import TextRange, TokenBlocks, cut_blocks
from potluck.settings import doc

__all__ = ["GeneratedLanguageSource", "GeneratedTopicsSource"]

_ALPHABET = string.ascii_lowercase + string.ascii_uppercase + string.digits + " ."
_MOST_TOKENS = 2**27
_MOST_PROBABILITIES = 2**22
_PADDING = "_"
_UNIT = 2**16
_TOPIC_RATIO = 0.8
_TEXTS_JUDGED = 4096  # enough for the best accuracy to within a percent

Floats = npt.NDArray[np.float64]


class GeneratedLanguageSource(Source, frozen=True, kw_only=True, tag="generated-language"):
    """Text of speakers with a language of known entropy, generated from a seed; the targets are the next tokens.

    Next tokens depend on the last `order` tokens. `potluck data info` shows the lowest loss that a model can have.
    """

    vocabulary: Annotated[int, Meta(ge=2, le=len(_ALPHABET)), doc("Number of tokens.")] = 16
    order: Annotated[int, Meta(ge=1, le=4), doc("How many of the last tokens the next one depends on.")] = 2
    ratio: Annotated[
        float, Meta(ge=0.05, le=1), doc("How likely a context's next choice of token is, relative to the one before.")
    ] = 0.5
    speakers: Annotated[int, Meta(ge=1, le=10_000), doc("Number of speakers, who own the samples.")] = 8
    skew: Annotated[
        float, Meta(ge=0, le=1), doc("How often a speaker uses its own language instead of the common one.")
    ] = 0.1
    block: Annotated[int, Meta(ge=1, le=65_536), doc("Tokens in a sample.")] = 64
    train: Annotated[int, Meta(ge=1), doc("Number of training samples.")] = 2000
    test: Annotated[int, Meta(ge=1), doc("Number of test samples.")] = 400
    seed: Annotated[int, Meta(ge=0), doc("Seed of the language and its text, independent of the job's.")] = 0

    def __post_init__(self) -> None:
        probabilities = self.vocabulary ** (self.order + 1) * self.speakers
        if probabilities > _MOST_PROBABILITIES:
            raise ValueError(
                f"{self.speakers} speakers with {self.vocabulary} tokens and order {self.order} have"
                f" {probabilities:,} probabilities, more than the {_MOST_PROBABILITIES:,} allowed"
            )
        tokens = (self.train + self.test) * self.block
        if tokens > _MOST_TOKENS:
            raise ValueError(f"{tokens:,} generated tokens are more than the {_MOST_TOKENS:,} allowed")
        if min(self.train, self.test) < self.speakers:
            raise ValueError(f"`train` and `test` must be at least {self.speakers}: one sample for each speaker")

    def language(self) -> MarkovLanguage:
        """The language, which knows its entropy and the loss of an ideal model."""
        return MarkovLanguage(self.vocabulary, self.order, self.speakers, self.skew, self.ratio, self.seed)

    def read(self, root: Path | None) -> Dataset:
        language, texts = self.language(), []
        train: list[TextRange] = []
        test: list[TextRange] = []
        first = 0
        for speaker in range(self.speakers):
            counts = [self._blocks_of(speaker, total) * self.block for total in (self.train, self.test)]
            texts.append(language.generate_tokens(speaker, sum(counts) + 2))
            train.append(TextRange(first, counts[0] + 1, speaker))
            test.append(TextRange(first + counts[0] + 1, counts[1] + 1, speaker))
            first += len(texts[-1])
        tokens = np.concatenate(texts)
        kept, held_out = (cut_blocks(tokens, ranges, self.block, self.block, owned=True) for ranges in (train, test))
        return Dataset(name=self.name, train=kept, test=held_out, classes=(), tokenizer=self._tokenizer())

    def info(self, root: Path | None) -> Info:
        language = self.language()
        return Info(
            name=self.name, about="generated text of speakers whose language has a known entropy", shape=(self.block,),
            classes=(), train=self.train, test=self.test, sample_bytes=8 * self.block, location=BUILT_IN,
            get="nothing to get", options=self.option_values(), vocabulary=self.vocabulary,
            entropy=float(language.entropy_rates.mean()), loss_floor=language.block_entropy(self.block),
        )  # fmt: skip

    def ideal_loss(self) -> float:
        """The loss on the test samples of the best model that is not told who speaks."""
        test = self.read(None).test
        assert isinstance(test, TokenBlocks)
        return self.language().ideal_loss(test.read_blocks(np.arange(len(test))).numpy())

    def _blocks_of(self, speaker: int, total: int) -> int:
        return total // self.speakers + (speaker < total % self.speakers)

    def _tokenizer(self) -> CharacterTokenizer:
        return CharacterTokenizer(_ALPHABET[: self.vocabulary])


class GeneratedTopicsSource(Source, frozen=True, kw_only=True, tag="generated-topics"):
    """Texts of different lengths to be classified by topic, generated from a seed; token 0 pads them to one length.

    Each topic has favourite tokens. A text's tokens are drawn from its topic or, as often as `common`, from all alike.
    """

    classes: Annotated[int, Meta(ge=2, le=1000), doc("Number of topics.")] = 4
    vocabulary: Annotated[
        int, Meta(ge=3, le=len(_ALPHABET) + 1), doc("Number of tokens, including the one for padding.")
    ] = 33
    length: Annotated[int, Meta(ge=1, le=65_536), doc("Tokens of the longest text; the shortest has a quarter.")] = 32
    common: Annotated[float, Meta(ge=0, le=1), doc("Part of the tokens that say nothing about the topic.")] = 0.6
    train: Annotated[int, Meta(ge=1), doc("Number of training samples.")] = 2000
    test: Annotated[int, Meta(ge=1), doc("Number of test samples.")] = 500
    seed: Annotated[int, Meta(ge=0), doc("Seed of the topics and the texts, independent of the job's.")] = 0

    def __post_init__(self) -> None:
        tokens = (self.train + self.test) * self.length
        if tokens > _MOST_TOKENS:
            raise ValueError(f"{tokens:,} generated tokens are more than the {_MOST_TOKENS:,} allowed")

    def read(self, root: Path | None) -> Dataset:
        train, test = (
            Samples(torch.from_numpy(tokens), torch.from_numpy(topics))
            for tokens, topics in (self._generate_texts("train", self.train), self._generate_texts("test", self.test))
        )
        tokenizer = CharacterTokenizer(_PADDING + _ALPHABET[: self.vocabulary - 1])
        return Dataset(name=self.name, train=train, test=test, classes=self._class_names(), tokenizer=tokenizer)

    def info(self, root: Path | None) -> Info:
        return Info(
            name=self.name, about="generated texts on topics whose best possible accuracy is known",
            shape=(self.length,), classes=self._class_names(), train=self.train, test=self.test,
            sample_bytes=8 * self.length, location=BUILT_IN, get="nothing to get", options=self.option_values(),
            vocabulary=self.vocabulary, accuracy_ceiling=float(self.topic_probabilities().max(axis=1).mean()),
        )  # fmt: skip

    def topic_probabilities(self) -> Floats:
        """What an ideal model says of the first test texts: the probability of each topic, (texts, topics)."""
        tokens = self._generate_texts("test", self.test)[0][:_TEXTS_JUDGED]
        log_probabilities = np.log(self._topic_counts() / _UNIT**2)
        says_nothing = np.zeros((self.classes, 1))
        scores = np.concatenate([says_nothing, log_probabilities], axis=1)[:, tokens].sum(axis=2).T
        likelihood: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
        likelihood /= likelihood.sum(axis=1, keepdims=True)
        return likelihood

    def _class_names(self) -> tuple[str, ...]:
        return tuple(f"topic {number}" for number in range(self.classes))

    def _topic_counts(self) -> Indices:
        """How many of 2^32 draws give each token but the padding, per topic."""
        tokens = self.vocabulary - 1
        language = MarkovLanguage(tokens, 1, 1, 0.0, _TOPIC_RATIO, self.seed)
        favourites = np.stack([language.rank_tokens("topic", number)[0] for number in range(self.classes)])
        alike = np.full(tokens, _UNIT // tokens)
        alike[0] += _UNIT - alike.sum()
        common = round(self.common * _UNIT)
        counts: Indices = favourites * (_UNIT - common) + alike * common
        return counts

    def _generate_texts(self, name: str, count: int) -> tuple[Indices, Indices]:
        """Tokens (count, length) and the topic of each text."""
        # NumPy guarantees that the legacy generator's stream never changes.
        random = np.random.RandomState(seeds.child_seed(self.seed, self.name, name) % 2**32)
        topics = random.permutation(np.arange(count, dtype=np.int64) % self.classes)
        lengths = random.randint(-(-self.length // 4), self.length + 1, count)
        tokens = np.zeros((count, self.length), np.int64)
        steps = self._topic_counts().cumsum(axis=1)
        for topic in range(self.classes):
            own = np.flatnonzero(topics == topic)
            draws = random.randint(0, _UNIT**2, (len(own), self.length), dtype=np.int64)
            tokens[own] = np.searchsorted(steps[topic], draws, side="right") + 1
        tokens[np.arange(self.length) >= lengths[:, None]] = 0
        return tokens, topics

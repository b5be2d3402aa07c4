from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch

from potluck.data import TokenBlocks, info, load, parse
from potluck.data.generated_text import GeneratedLanguageSource, GeneratedTopicsSource
from potluck.errors import SettingError


def test_a_sample_is_a_block_and_the_tokens_that_follow() -> None:
    data = load("generated-language:train=40,test=16,block=12,speakers=4")
    inputs, targets = data.train.batch(np.arange(40))
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.shape == targets.shape == (40, 12)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert (data.vocabulary, data.shape, data.classes) == (16, (12,), ())
    assert int(inputs.max()) < 16
    assert data.train.owner is not None
    assert data.train.owner.tolist() == [speaker for speaker in range(4) for _ in range(10)]


def test_training_and_test_text_do_not_overlap() -> None:
    data = load("generated-language:train=9,test=9,block=5,speakers=2")
    assert isinstance(data.train, TokenBlocks)
    assert isinstance(data.test, TokenBlocks)
    seen = [{offset + step for offset in blocks.offsets for step in range(6)} for blocks in (data.train, data.test)]
    assert not seen[0] & seen[1]
    assert max(seen[1]) == len(data.train.tokens) - 1


def test_speakers_differ_by_their_skew() -> None:
    def distance(skew: float) -> float:
        language = GeneratedLanguageSource(order=1, vocabulary=6, speakers=2, skew=skew).language()
        first, second = (language.generate_tokens(speaker, 4000) for speaker in range(2))
        pairs = [np.bincount(text[:-1] * 6 + text[1:], minlength=36) / 4000 for text in (first, second)]
        return float(np.abs(pairs[0] - pairs[1]).sum())

    assert distance(0.0) < 0.15 < 0.3 < distance(0.3) < distance(1.0)


def test_the_floor_is_known_before_the_text_is_read() -> None:
    description = info("generated-language:skew=0,block=32")
    assert description.entropy == pytest.approx(2 * math.log(2), abs=0.001)
    assert description.entropy is not None
    assert description.loss_floor is not None
    assert description.entropy < description.loss_floor < description.entropy + 0.1
    source = parse("generated-language:speakers=2,test=400")
    assert isinstance(source, GeneratedLanguageSource)
    floor = source.info(None).loss_floor
    assert floor is not None
    assert floor - 0.01 < source.ideal_loss() < floor + math.log(2) / 64 + 0.01


def test_topics_are_padded_and_can_be_told_apart_as_well_as_promised() -> None:
    source = GeneratedTopicsSource(test=3000)
    data = source.read(None)
    texts, topics = data.test.batch(np.arange(3000))
    assert texts.dtype == torch.int64
    lengths = (texts != 0).sum(1)
    assert (int(lengths.min()), int(lengths.max())) == (8, 32)
    assert bool((texts[torch.arange(32) >= lengths[:, None]] == 0).all())
    assert data.vocabulary == 33
    assert len(data.classes) == 4
    best = source.info(None).accuracy_ceiling
    assert best is not None
    answers = source.topic_probabilities().argmax(axis=1)
    assert float((answers == topics.numpy()).mean()) == pytest.approx(best, abs=0.02)
    assert 0.8 < best < 0.95
    assert GeneratedTopicsSource(common=1.0).info(None).accuracy_ceiling == pytest.approx(0.25)


def test_every_machine_generates_the_same_topics() -> None:
    texts = load("generated-topics").train.batch(np.arange(2000))[0].to(torch.uint8).numpy()
    assert hashlib.sha256(texts.tobytes()).hexdigest()[:16] == "76a21503bca260ce"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("generated-language:vocabulary=1", r"data\.vocabulary"),
        ("generated-language:vocabulary=64,order=4", "probabilities"),
        ("generated-language:speakers=9,test=8", "at least 9"),
        ("generated-language:train=100000000", "tokens are more"),
        ("generated-language:ratio=0", r"data\.ratio"),
        ("generated-topics:length=65536,train=100000", "tokens are more"),
    ],
)
def test_wrong_options_are_refused(name: str, problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        load(name)

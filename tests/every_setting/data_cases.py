"""Cases for data sets, compared by their samples, and for models from settings, compared by what is built."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from potluck.data.cifar import Cifar100Source
from potluck.data.dataset_files import PublishedFile
from potluck.data.text_folder import TinyShakespeareSource
from tests.every_setting.outcomes import loaded_data, model_built
from tests.every_setting.setting_case import SettingCase, cases
from tests.every_setting.small_jobs import Tables, rounds

__all__ = ["CASES", "write_data_files"]

_PLAY = "".join(
    f"{name}:\n{words * 12}\n\n"
    for name, words in (("ROMEO", "O love, "), ("JULIET", "Good night! "), ("NURSE", "Anon. "))
)
_WORDS = ["down", "go", "left", "no", "off", "on", "one", "right", "stop", "three", "two", "up", "yes"]
_SMALL = {"train": 40, "test": 20}


def write_data_files(root: Path, patch: pytest.MonkeyPatch) -> None:
    """Small files in the layouts of the data sets that are read from files; relative paths are below this folder."""
    patch.chdir(root)
    patch.delenv("POTLUCK_DATA", raising=False)
    patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    for folder in ("texts", "texts/more", "others", "text", "kws", "cifar-100-binary"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "texts" / "a.txt").write_text(_PLAY)
    (root / "texts" / "more" / "b.txt").write_text(_PLAY[150::-1].replace(":", "."))
    (root / "texts" / "c.md").write_text(_PLAY.upper())
    (root / "others" / "a.txt").write_text(_PLAY.lower())
    (root / "text" / "tinyshakespeare.txt").write_text(_PLAY)
    patch.setattr(TinyShakespeareSource, "file", _published("tinyshakespeare.txt", _PLAY.encode()))
    _write_speech(root / "kws" / "kws.npz")
    rows = np.random.default_rng(0).integers(0, 256, (20, 2 + 3072), dtype=np.uint8)
    rows[:, 0], rows[:, 1] = np.arange(20), np.arange(20) * 5
    for name in ("train.bin", "test.bin"):
        (root / "cifar-100-binary" / name).write_bytes(rows.tobytes())
    files = tuple(_published(name, rows.tobytes()) for name in ("train.bin", "test.bin"))
    patch.setattr(Cifar100Source, "files", files)
    _write_images(root)


def _published(name: str, content: bytes) -> PublishedFile:
    return PublishedFile(name, len(content), "sha256:" + hashlib.sha256(content).hexdigest())


def _write_speech(path: Path) -> None:
    words = ["_silence_", "_unknown_", *_WORDS]
    labels = [words.index(word) for word in ("down", "one", "two", "yes")]
    y = np.array([*labels, *reversed(labels), *labels, 0, 1, words.index("yes")], np.uint8)
    split = np.repeat(np.array([0, 1, 2, 3], np.uint8), [4, 4, 4, 3])
    x, speaker = np.zeros((len(y), 49, 40), np.uint8), np.zeros(len(y), np.uint16)
    np.savez_compressed(path, x=x, y=y, speaker=speaker, split=split, words=np.array(words), speakers=np.array(["-"]))


def _write_images(root: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for top, shade in (("images", 200), ("darker", 50)):
        for name, colour in (("green", (0, shade, 0)), ("red", (shade, 0, 0))):
            (root / top / name).mkdir(parents=True, exist_ok=True)
            for number in range(10):
                image.new("RGB", (12, 10), colour).save(root / top / name / f"{number}.png")


def _data(kind: str, measure: Any = loaded_data, /, *, base: Tables | None = None, **values: Any) -> list[SettingCase]:
    task = {"model": "mlp", "data": {"kind": kind, **(base or {})}}
    return cases(rounds("fedavg", job={"task": task}), "task.data", measure, **values)


_ALPHABET = "".join(sorted(set(_PLAY + "."), reverse=True))
_TEXT = {"block": 8, "min_tokens": 0}
_DATA = [
    *_data("cifar100", labels="coarse"),
    *_data("speech-commands", test_clips="validation"),
    *_data("drawn-digits", base=_SMALL, train=50, test=30, noise=0.5, seed=1),
    *_data("generated-language", base=_SMALL, vocabulary=8, order=1, ratio=0.2, speakers=4, skew=0.9, block=16,
           train=50, test=30, seed=1),
    *_data("generated-topics", base=_SMALL, classes=3, vocabulary=20, length=16, common=0.1, train=50, test=30, seed=1),
    *_data("folder", base={"path": "images"}, path="darker", size=[8, 8], channels=1),
    *_data("synthetic", base=_SMALL, classes=3, shape=[2, 4], train=50, test=30, noise=2.0, owners=3, seed=1),
    *_data("text", base={"path": "texts", **_TEXT}, path="others", block=12, stride=4, test_fraction=0.4,
           min_tokens=200, pattern="*.md", owners="file", tokenizer="bytes", alphabet=_ALPHABET),
    *_data("tiny-shakespeare", base=_TEXT, block=12, stride=4, test_fraction=0.4, min_tokens=120, owners="none"),
]  # fmt: skip

_GPT: Tables = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 16}
_ADAPTERS: Tables = {"rank": 2, "targets": ["c_attn"]}


def _model(**settings: Any) -> Tables:
    model = {"kind": "transformers", "config": _GPT, **settings}
    task = {"model": model, "data": {"kind": "generated-language", **_SMALL}}
    return rounds("fedavg", job={"task": task})


_MODELS = [
    *cases(_model(), "task.model", model_built,
           config={**_GPT, "n_layer": 2}, auto="AutoModelForSequenceClassification", lora=_ADAPTERS),
    *cases(_model(lora=_ADAPTERS), "task.model.lora", model_built,
           rank=4, alpha=8.0, targets=["c_proj"], dropout=0.5),
]  # fmt: skip

CASES = [*_DATA, *_MODELS]

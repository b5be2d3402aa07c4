from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from potluck.data import SampleSet, TokenBlocks, info, load, parse
from potluck.data.dataset_files import PublishedFile
from potluck.data.text_folder import TextFolderSource, TinyShakespeareSource
from potluck.errors import DataError, SettingError

PLAY = "KATE:\n" + "If I be waspish, best beware my sting.\n" * 8 + "\nBEN:\n" + "O, a note: he comes.\nSo:\n" * 9
PLAY += "\n\nKATE:\nAgain I speak to you, and say\n\nthis is still me.\n\nFOOL:\nNo.\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for owner in ("ann", "bob"):
        (tmp_path / owner).mkdir()
        for number in range(2):
            (tmp_path / owner / f"{number}.txt").write_text(f"{owner} says {number}: " * 20, encoding="utf-8")
    return tmp_path


def _texts(samples: object, tokenizer: object) -> list[str]:
    assert isinstance(samples, TokenBlocks)
    return [tokenizer.decode_tokens(row) for row in samples.read_blocks(np.arange(len(samples))).numpy()]  # type: ignore[attr-defined]


def test_blocks_are_consecutive_and_the_end_of_each_file_is_held_out(folder: Path) -> None:
    data = load(f"text:{folder},block=10,test_fraction=0.2")
    text = "ann says 0: " * 20
    kept = len(text) - round(0.2 * len(text))
    mine = _texts(data.train, data.tokenizer)[: (kept - 1) // 10]
    assert mine == [text[start : start + 11] for start in range(0, kept - 10, 10)]
    assert _texts(data.test, data.tokenizer)[0] == text[kept : kept + 11]
    assert data.train.owner is None
    assert (data.vocabulary, data.shape) == (len(set(text + "bob1")), (10,))
    samples: SampleSet = data.train
    assert (samples.needs_rng, samples.has_labels, samples.is_stream) == (False, False, False)
    with pytest.raises(DataError, match="not labels"):
        assert samples.labels
    inputs, targets = samples.batch(np.array([3, 0]))
    assert inputs.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_overlapping_blocks_share_their_tokens(folder: Path) -> None:
    data = load(f"text:{folder},block=10,stride=1,owners=file")
    assert isinstance(data.train, TokenBlocks)
    assert len(data.train) == 4 * (216 - 10)
    assert data.train.tokens.dtype == np.uint8
    assert data.train.tokens.nbytes == 4 * 240
    every = data.train.read_blocks(np.arange(len(data.train)))
    assert torch.equal(every[0, 1:], every[1, :-1])
    chosen = np.array([205, 206, 7, 7])
    assert torch.equal(data.train.read_blocks(chosen), every[chosen])


@pytest.mark.parametrize(("owners", "count"), [("file", 4), ("folder", 2)])
def test_owners_are_files_or_folders(folder: Path, owners: str, count: int) -> None:
    data = load({"kind": "text", "path": str(folder), "block": 8, "owners": owners})
    assert data.train.owner is not None
    assert len(np.unique(data.train.owner)) == count
    for text, owner in zip(_texts(data.train, data.tokenizer), data.train.owner, strict=True):
        assert ("b" in text) == (owner >= count // 2)


def test_a_play_is_split_by_speaker(tmp_path: Path) -> None:
    (tmp_path / "play.txt").write_text(PLAY, encoding="utf-8")
    source = TextFolderSource(path=str(tmp_path / "play.txt"), owners="speaker", block=8, min_tokens=20)
    speeches = list(source.iterate_texts(None))
    assert [name for name, _ in speeches] == ["KATE", "BEN", "KATE", "FOOL"]
    assert speeches[1][1] == "O, a note: he comes.\nSo:\n" * 9 + "\n"
    assert speeches[2][1] == "Again I speak to you, and say\n\nthis is still me.\n\n"
    assert speeches[3][1] == "No.\n\n"
    data = source.read(None)
    assert data.train.owner is not None
    assert np.unique(data.train.owner).tolist() == [0, 1]  # the fool says too little
    assert "N" in data.tokenizer.alphabet  # type: ignore[union-attr]


def test_bytes_and_an_alphabet_do_not_depend_on_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("naïve, déjà vu\r\n".encode() * 20)
    data = load(f"text:{tmp_path},tokenizer=bytes,block=6")
    assert data.vocabulary == 256
    assert _texts(data.train, data.tokenizer)[0] == "naïve,"
    alphabet = "\n ,abcdejnuvàéï"
    data = load({"kind": "text", "path": str(tmp_path), "alphabet": alphabet, "block": 6})
    assert data.vocabulary == len(alphabet)
    assert _texts(data.train, data.tokenizer)[:2] == ["naïve, ", " déjà v"]


def test_a_tokenizer_file_is_used(folder: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"[UNK]": 0, "ann": 1, "bob": 2, "says": 3, ":": 4}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(4)
    tokenizer.save(str(folder / "tokenizer.json"))
    data = load(f"text:{folder},block=7,tokenizer={folder}/tokenizer.json")
    assert data.vocabulary == 5
    assert isinstance(data.train, TokenBlocks)
    assert data.train.read_blocks(np.arange(1)).tolist() == [[1, 3, 0, 4, 1, 3, 0, 4]]
    (folder / "tokenizer.json").write_text(json.dumps({"model": 3}), encoding="utf-8")
    with pytest.raises(DataError, match=r"tokenizer\.json is not a tokenizer\.json of the tokenizers library"):
        load(f"text:{folder},tokenizer={folder}/tokenizer.json")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("pattern=*.md", r"holds no files like \*\.md"),
        ("block=300", r"ann/0\.txt has 240 tokens, too few to train on blocks of 300"),
        ("block=30", "no held-out text fills a block of 30"),
        ("min_tokens=1000", "every text has fewer than 1,000 tokens"),
        ("owners=speaker", "does not begin with a speaker"),
        ("alphabet=abn sy", r"ann/0\.txt, line 1: character '0' is not in the alphabet"),
        ("tokenizer=nowhere.json", r"nowhere\.json is not a file"),
    ],
)
def test_what_cannot_be_read_is_named(folder: Path, options: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem) as caught:
        load(f"text:{folder},{options}")
    assert "\n" not in str(caught.value)


def test_files_that_are_not_text_and_missing_folders_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="is not a folder or file"):
        load(f"text:{folder}/nowhere")
    with pytest.raises(DataError, match="is not a folder or file"):
        load("text")
    (folder / "loose.txt").write_text("nobody's " * 30, encoding="utf-8")
    with pytest.raises(DataError, match=r"loose\.txt is in no subfolder"):
        load(f"text:{folder},owners=folder")
    (folder / "ann" / "2.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"ann/2\.txt is not UTF-8 \(byte 3\)"):
        load(f"text:{folder}")
    with pytest.raises(SettingError, match="`alphabet` is for tokenizer = 'characters'"):
        load(f"text:{folder},tokenizer=bytes,alphabet=abc")
    with pytest.raises(SettingError, match="twice"):
        load(f"text:{folder},alphabet=abca")


def test_a_relative_path_is_searched_below_the_data_folder(folder: Path) -> None:
    assert len(load("text:ann,block=8", folder).train) > 0
    assert info("text:ann,block=8", folder).location == str(folder / "ann")


def test_too_much_text_is_refused_before_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("potluck.data.text_folder.LARGEST_BYTES", 900)
    with pytest.raises(DataError, match="960 bytes of text"):
        load(f"text:{folder}")


def test_tiny_shakespeare_by_speaker_or_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = f"sha256:{hashlib.sha256(PLAY.encode()).hexdigest()}"
    monkeypatch.setattr(TinyShakespeareSource, "file", PublishedFile("tinyshakespeare.txt", len(PLAY), digest))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"tiny-shakespeare was not found .*karpathy/char-rnn"):
        load("tiny-shakespeare", tmp_path)
    assert info("tiny-shakespeare", tmp_path).vocabulary == 65
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "tinyshakespeare.txt").write_text(PLAY, encoding="utf-8")
    data = load("tiny-shakespeare:min_tokens=100,block=8", tmp_path)
    assert data.train.owner is not None
    assert len(np.unique(data.train.owner)) == 2
    whole = load("tiny-shakespeare:owners=none,min_tokens=0,block=8", tmp_path)
    assert whole.train.owner is None
    assert _texts(whole.train, whole.tokenizer)[0] == PLAY[:9]
    assert data.vocabulary == whole.vocabulary == len(set(PLAY))
    (tmp_path / "text" / "tinyshakespeare.txt").write_text(PLAY.replace("O", "A"), encoding="utf-8")
    with pytest.raises(DataError, match="is not the published file"):
        load("tiny-shakespeare", tmp_path)


def test_the_description_agrees_with_the_text(folder: Path) -> None:
    name = f"text:{folder},block=8,owners=folder"
    description, data = info(name), load(name)
    assert (description.train, description.test) == (len(data.train), len(data.test))
    assert (description.vocabulary, description.shape) == (data.vocabulary, data.shape)
    assert description.sample_bytes == data.sample_bytes
    assert info("text").train == 0
    assert parse("text:/a,b/c,block=8") == TextFolderSource(path="/a,b/c", block=8)

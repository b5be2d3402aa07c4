"""Reads text files into blocks of tokens: a folder of your own, or tiny Shakespeare by speaker.

A *text* is what belongs to one owner, or one file where nobody owns it. The end of every text is held out for testing,
and no block crosses the border of a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from msgspec import Meta

from potluck.data.dataset_files import LARGEST_BYTES, PublishedFile, read_published_file
from potluck.data.dataset_source import Info, Source, data_roots, find_folder, search_folder
from potluck.data.samples import Dataset
from potluck.data.text_tokenizers import ByteTokenizer, CharacterTokenizer, FileTokenizer, TextTokenizer, Tokens
from potluck.data.token_blocks import TextRange, cut_blocks
from potluck.errors import DataError
from potluck.settings import doc

__all__ = ["TextFolderSource", "TinyShakespeareSource"]

Block = Annotated[int, Meta(ge=1, le=65_536)]
_LONGEST_NAME = 80


class _TextSource(Source, frozen=True, kw_only=True):
    """What all text files have in common: how their tokens are cut into samples."""

    block: Annotated[Block, doc("Tokens in a sample.")] = 64
    stride: Annotated[
        Block | None, doc("Tokens from one training sample's beginning to the next; by default `block`: no overlap.")
    ] = None
    test_fraction: Annotated[
        float, Meta(gt=0, lt=1), doc("Part of each owner's text, or of each file, that is held out from its end.")
    ] = 0.1
    min_tokens: Annotated[int, Meta(ge=0), doc("Leave out owners, or files, with fewer tokens than this.")] = 0

    about: ClassVar[str]
    get: ClassVar[str]
    usual_vocabulary: ClassVar[int] = 0
    """Number of tokens, where it is known without the files."""

    def iterate_texts(self, root: Path | None) -> Iterator[tuple[str, str]]:
        """The owner or file, and the text; those with one name are joined."""
        raise NotImplementedError

    def text_tokenizer(self, root: Path | None) -> TextTokenizer:
        raise NotImplementedError

    def locate(self, root: Path | None) -> Path | None:
        """The folder or file, or None where it is missing."""
        raise NotImplementedError

    @property
    def owned(self) -> bool:
        """Whether the texts are those of owners."""
        raise NotImplementedError

    def read(self, root: Path | None) -> Dataset:
        tokenizer = self.text_tokenizer(root)
        own_tokens: dict[str, list[Tokens]] = {}
        for name, text in self.iterate_texts(root):  # one at a time: tokens are smaller than text
            own_tokens.setdefault(name, []).append(_encode(tokenizer, name, text))
        texts = {name: np.concatenate(own) for name, own in own_tokens.items()}
        texts = {name: tokens for name, tokens in texts.items() if len(tokens) >= self.min_tokens}
        if not texts:
            raise DataError(f"{self.name}: every text has fewer than {self.min_tokens:,} tokens; lower `min_tokens`")
        train, test = self._divide(texts)
        tokens = np.concatenate(list(texts.values()))
        blocks = cut_blocks(tokens, train, self.block, self.stride or self.block, owned=self.owned)
        held_out = cut_blocks(tokens, test, self.block, self.block, owned=self.owned)
        if not len(held_out):
            raise DataError(
                f"{self.name}: no held-out text fills a block of {self.block} tokens and the one after it;"
                " raise `test_fraction` or choose a smaller `block`"
            )
        return Dataset(name=self.name, train=blocks, test=held_out, classes=(), tokenizer=tokenizer)

    def _divide(self, texts: Mapping[str, Tokens]) -> tuple[list[TextRange], list[TextRange]]:
        """Where each text's training and test tokens are when all texts are joined."""
        train: list[TextRange] = []
        test: list[TextRange] = []
        first = 0
        for owner, (name, tokens) in enumerate(texts.items()):
            held_out = round(self.test_fraction * len(tokens))
            kept = len(tokens) - held_out
            if kept <= self.block:
                raise DataError(
                    f"{self.name}: {name} has {len(tokens):,} tokens, too few to train on blocks of {self.block};"
                    " choose a smaller `block`, or leave such texts out with `min_tokens`"
                )
            train.append(TextRange(first, kept, owner))
            test.append(TextRange(first + kept, held_out, owner))
            first += len(tokens)
        return train, test

    def info(self, root: Path | None) -> Info:
        location = self.locate(root)
        data = self.read(root) if location is not None else None
        return Info(
            name=self.name, about=self.about, shape=(self.block,), classes=(),
            train=0 if data is None else len(data.train), test=0 if data is None else len(data.test),
            sample_bytes=8 * self.block,
            location=None if location is None else str(location), get=self.get, options=self.option_values(),
            vocabulary=self.usual_vocabulary if data is None else data.vocabulary,
        )  # fmt: skip


class TextFolderSource(_TextSource, frozen=True, kw_only=True, tag="text"):
    """Your own text files (UTF-8); the targets are the next tokens.

    `owners` says whose each text is: `none`; `file` for one file each; `folder` for one subfolder each; or `speaker`
    for plays, in which a line `NAME:` after an empty line says who speaks. Every device needs the same files, unless
    tokens do not depend on them: `bytes`, a tokenizer's file, or `characters` with an `alphabet`.
    """

    path: Annotated[str, doc("Folder of the files, or one file; relative to this folder or to the data folder.")] = ""
    pattern: Annotated[str, doc("Which files of the folder and its subfolders to read.")] = "*.txt"
    owners: Annotated[
        Literal["none", "file", "folder", "speaker"], doc("Who owns a text: nobody, its file, its folder, its speaker.")
    ] = "none"
    tokenizer: Annotated[
        str, doc("Tokens are `characters`, `bytes`, or those of a tokenizer.json (needs `potluck[hf]`).")
    ] = "characters"
    alphabet: Annotated[
        str, doc("All characters that are tokens, in their order; by default those that occur, sorted.")
    ] = ""

    about: ClassVar[str] = "your own text files, by character, byte or tokenizer"
    get: ClassVar[str] = "name it as text:/path (tokenizers need: pip install 'potluck[hf]')"

    def __post_init__(self) -> None:
        if self.alphabet and self.tokenizer != "characters":
            raise ValueError(f"`alphabet` is for tokenizer = 'characters', not {self.tokenizer!r}; remove it")
        if len(set(self.alphabet)) != len(self.alphabet):
            raise ValueError("`alphabet` has a character twice")

    @property
    def owned(self) -> bool:
        return self.owners != "none"

    def locate(self, root: Path | None) -> Path | None:
        if not self.path:
            return None
        path = Path(self.path).expanduser()
        candidates = [path, *(folder / path for folder in data_roots(root))]
        return next((candidate for candidate in candidates if candidate.exists()), path)

    def text_tokenizer(self, root: Path | None) -> TextTokenizer:
        if self.tokenizer == "bytes":
            return ByteTokenizer()
        if self.tokenizer != "characters":
            return FileTokenizer(Path(self.tokenizer).expanduser())
        if self.alphabet:
            return CharacterTokenizer(self.alphabet)
        return CharacterTokenizer.from_texts(_read_utf8(path) for path in self._list_files(root))

    def iterate_texts(self, root: Path | None) -> Iterator[tuple[str, str]]:
        top = self._top(root)
        for path in self._list_files(root):
            yield from self._split_file(top, path)

    def _split_file(self, top: Path, path: Path) -> Iterator[tuple[str, str]]:
        """The texts of one file, each with its owner or, where nobody owns it, the file."""
        text = _read_utf8(path)
        if self.owners == "speaker":
            yield from _split_speeches(text, path)
        elif self.owners == "folder":
            folders = path.relative_to(top).parts[:-1]
            if not folders:
                raise DataError(
                    f"text: {path} is in no subfolder, but `owners` is 'folder'; move it into its owner's folder"
                )
            yield folders[0], text
        else:
            yield str(path), text

    def _top(self, root: Path | None) -> Path:
        path = self.locate(root)
        if path is None or not path.exists():
            raise DataError(f"text: {self.path!r} is not a folder or file; name it as text:/path/to/texts")
        return path if path.is_dir() else path.parent

    def _list_files(self, root: Path | None) -> list[Path]:
        """Sorted by path, so that every device lists them alike."""
        top, path = self._top(root), self.locate(root)
        assert path is not None
        try:
            files = sorted(file for file in top.rglob(self.pattern) if file.is_file()) if path.is_dir() else [path]
        except (ValueError, NotImplementedError) as error:
            raise DataError(f"text: `pattern` {self.pattern!r} is not a pattern such as *.txt ({error})") from error
        if not files:
            raise DataError(f"text: {path} holds no files like {self.pattern}; set `pattern`, such as *.md")
        total = sum(file.stat().st_size for file in files)
        if total > LARGEST_BYTES:
            raise DataError(f"text: {total:,} bytes of text in {path} are more than the {LARGEST_BYTES:,} allowed")
        return files


class TinyShakespeareSource(_TextSource, frozen=True, kw_only=True, tag="tiny-shakespeare"):
    """1.1 million characters of Shakespeare's plays, by speaker (Karpathy 2015); the targets are the next characters.

    By default 99 of 309 speakers are used, those with 2,000 characters or more. With `owners = "none"` the text is
    read as it was published and its last tenth is held out, as in nanoGPT.
    """

    min_tokens: Annotated[int, Meta(ge=0), doc("Leave out speakers with fewer characters than this.")] = 2000
    owners: Annotated[Literal["speaker", "none"], doc("Divide the text by speaker, or leave it as it is.")] = "speaker"

    about: ClassVar[str] = "1.1 million characters of Shakespeare's plays, by speaker (Karpathy 2015)"
    get: ClassVar[str] = (
        "save data/tinyshakespeare/input.txt of github.com/karpathy/char-rnn there as tinyshakespeare.txt"
    )
    usual_vocabulary: ClassVar[int] = 65
    folders: ClassVar[tuple[str, ...]] = ("text", "tiny-shakespeare", "tinyshakespeare")
    file: ClassVar[PublishedFile] = PublishedFile(
        "tinyshakespeare.txt", 1_115_394, "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    )

    @property
    def owned(self) -> bool:
        return self.owners == "speaker"

    def locate(self, root: Path | None) -> Path | None:
        return search_folder(self.folders, self.file.name, root)

    def text_tokenizer(self, root: Path | None) -> TextTokenizer:
        return CharacterTokenizer.from_texts([self._read_plays(root)])

    def iterate_texts(self, root: Path | None) -> Iterator[tuple[str, str]]:
        plays = self._read_plays(root)
        if self.owners == "none":
            yield self.file.name, plays
        else:
            yield from _split_speeches(plays, Path(self.file.name))

    def _read_plays(self, root: Path | None) -> str:
        folder = find_folder(self.name, self.folders, self.file.name, root, self.get)
        return read_published_file(folder, self.file).tobytes().decode("ascii")


def _split_speeches(text: str, path: Path) -> Iterator[tuple[str, str]]:
    """Who speaks and what they say, in order; a line `NAME:` after an empty line, or at the top, names the speaker."""
    speaker, speech = "", list[str]()
    after_gap = True
    for line in text.split("\n"):
        stripped = line.strip()
        if after_gap and stripped.endswith(":") and 1 < len(stripped) <= _LONGEST_NAME:
            if speaker:
                yield speaker, "\n".join(speech).rstrip("\n") + "\n\n"
            speaker, speech = stripped[:-1].strip(), []
        elif speaker:
            speech.append(line)
        elif stripped:
            raise DataError(
                f"text: {path} does not begin with a speaker (a line `NAME:`, after an empty line further down), but"
                " `owners` is 'speaker'; set `owners` to file, folder or none"
            )
        after_gap = not stripped
    if speaker:
        yield speaker, "\n".join(speech).rstrip("\n") + "\n\n"


def _read_utf8(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"text: {path} is not UTF-8 (byte {error.start}); convert it, or set another `pattern`"
        ) from None
    except OSError as error:
        raise DataError(f"text: {path} cannot be read ({error.strerror})") from error


def _encode(tokenizer: TextTokenizer, name: str, text: str) -> Tokens:
    try:
        return tokenizer.encode_text(text)
    except DataError as error:
        raise DataError(f"text: {name}, {error}") from None

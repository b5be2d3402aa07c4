"""Turns text into token numbers and back: by character, by UTF-8 byte, or with a file of the `tokenizers` library."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from potluck.errors import DataError

__all__ = ["ByteTokenizer", "CharacterTokenizer", "FileTokenizer", "TextTokenizer", "Tokens", "token_dtype"]

Tokens = npt.NDArray[np.integer]
"""Token numbers of a text, one dimension, in the smallest dtype that holds the vocabulary."""

_BYTES = 256


class TextTokenizer(Protocol):
    """What a data set of text knows about its tokens."""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are; they are numbered from 0."""

    def encode_text(self, text: str) -> Tokens:
        """The tokens of a text; DataError names a character that has none."""

    def decode_tokens(self, tokens: Sequence[int] | Tokens) -> str:
        """The text of these tokens."""


class CharacterTokenizer:
    """Each character of an alphabet is a token, numbered in the alphabet's order."""

    def __init__(self, alphabet: str) -> None:
        self.alphabet = alphabet
        if len(set(alphabet)) != len(alphabet) or not alphabet:
            raise DataError(f"an alphabet needs different characters, got {alphabet!r}")
        self._dtype = token_dtype(len(alphabet))
        self._number_of = np.full(sys.maxunicode + 1, -1, np.int32)
        self._number_of[_code_points(alphabet)] = np.arange(len(alphabet))

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> CharacterTokenizer:
        """The tokenizer of all characters that occur, sorted."""
        return cls("".join(sorted(set[str]().union(*texts))))

    @property
    def vocabulary(self) -> int:
        return len(self.alphabet)

    def encode_text(self, text: str) -> Tokens:
        numbers = self._number_of[_code_points(text)]
        unknown = np.flatnonzero(numbers < 0)
        if len(unknown):
            offset = int(unknown[0])
            line = text.count("\n", 0, offset) + 1
            raise DataError(f"line {line}: character {text[offset]!r} is not in the alphabet; add it to `alphabet`")
        return numbers.astype(self._dtype)

    def decode_tokens(self, tokens: Sequence[int] | Tokens) -> str:
        return "".join(self.alphabet[int(token)] for token in tokens)


class ByteTokenizer:
    """Each byte of the text's UTF-8 is a token, so that any text has tokens and all devices agree on them."""

    @property
    def vocabulary(self) -> int:
        return _BYTES

    def encode_text(self, text: str) -> Tokens:
        return np.frombuffer(text.encode("utf-8"), np.uint8)

    def decode_tokens(self, tokens: Sequence[int] | Tokens) -> str:
        return bytes(int(token) for token in tokens).decode("utf-8", errors="replace")


class FileTokenizer:
    """A `tokenizer.json` of Hugging Face's `tokenizers`, read from disk; nothing is downloaded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokenizer = _read_tokenizer(path)
        self._dtype = token_dtype(self.vocabulary)

    @property
    def vocabulary(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode_text(self, text: str) -> Tokens:
        try:
            numbers = self._tokenizer.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the library raises plain Exceptions
            raise DataError(
                f"{self._path} cannot encode this text ({error}); train it with an unknown token"
            ) from error
        return np.asarray(numbers, self._dtype)

    def decode_tokens(self, tokens: Sequence[int] | Tokens) -> str:
        return str(self._tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False))


def token_dtype(vocabulary: int) -> type[np.integer]:
    """The smallest dtype that holds token numbers below `vocabulary`."""
    return np.uint8 if vocabulary <= 2**8 else np.uint16 if vocabulary <= 2**16 else np.int32


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), "<u4")


def _read_tokenizer(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise DataError(f"{path}: reading a tokenizer needs tokenizers: pip install 'potluck[hf]'") from error
    if not path.is_file():
        raise DataError(f"{path} is not a file; name a tokenizer.json, `characters` or `bytes`")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exceptions
        raise DataError(f"{path} is not a tokenizer.json of the tokenizers library ({error})") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer

"""Text from elsewhere: nothing in it reaches a terminal or a page that would be acted on instead of shown."""

from __future__ import annotations

import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.text_escaping import escape_strings, escape_text, name_refusal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain äöü 你好 ✓", "plain äöü 你好 ✓"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("a\nb\rc\td", r"a\nb\rc\td"),
        ("\x7f\x80\x9b31m", r"\x7f\x80\x9b31m"),
        ("pi\u202e3\u2066\u2069", r"pi\u202e3\u2066\u2069"),
        ("a\u200bb\u200dc\ufeff", r"a\u200bb\u200dc\ufeff"),
        ("x\u2028y", r"x\u2028y"),
    ],
)
def test_unsafe_characters_are_written_out(text: str, shown: str) -> None:
    assert escape_text(text) == shown
    assert escape_text(shown) == shown, "escaping again changes nothing"


@given(st.text())
def test_no_control_or_format_character_is_left(text: str) -> None:
    escaped = escape_text(text)
    assert not any(unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") for each in escaped)
    assert not any(unicodedata.bidirectional(each) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
                   for each in escaped)  # fmt: skip


def test_a_traceback_keeps_its_lines_and_a_long_text_is_cut() -> None:
    assert escape_text("one\n\ttwo\x1b", keep_lines=True) == "one\n\ttwo\\x1b"
    assert escape_text("0123456789", 4) == "012…"


class _Note(msgspec.Struct, frozen=True):
    reason: str
    trace: str = ""
    fields: dict[str, object] = {}
    count: int = 0


def test_strings_are_escaped_however_deep() -> None:
    clean = _Note("fine", "a\nb", {"x": [1, ("y",)]})
    assert escape_strings(clean, multiline=("trace",)) is clean
    note = _Note("a\x1b", "l1\nl2\x1b", {"k\x1b": ["v\u202e", 3, {"deep\x00": None}], "n": 1.5}, 7)
    assert escape_strings(note, multiline=("trace",)) == _Note(
        "a\\x1b", "l1\nl2\\x1b", {"k\\x1b": ["v\\u202e", 3, {"deep\\x00": None}], "n": 1.5}, 7
    )


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "...",
        "a/b",
        "a\\b",
        "*",
        "pi-*",
        "a$b",
        "a#b",
        "a?b",
        "a b",
        "a\n",
        "pi\x1b",
        "\u202e",
        "x" * 101,
    ],
)
def test_what_is_no_name(name: str) -> None:
    reason = name_refusal(name)
    assert reason is not None
    assert reason == escape_text(reason)


@pytest.mark.parametrize("name", ["pi-3", "laptop", "a.b_c", "Gerät", "..a", "0", "x" * 100])
def test_what_is_a_name(name: str) -> None:
    assert name_refusal(name) is None

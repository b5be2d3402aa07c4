"""Makes text that came from elsewhere safe to show: what a terminal or a page would act on instead of printing.

Whatever a peer sends passes through `escape_strings` where it is decoded, so logs, tables, journals and pages need not
escape it again.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

__all__ = ["MAX_NAME_CHARS", "UNSAFE_CHARACTER", "escape_strings", "escape_text", "name_refusal"]

MAX_NAME_CHARS = 100  # of a device's name

# C0 and C1 controls with DEL (ANSI sequences begin with one), marks that turn the direction of text, characters without
# a width, line separators, tags, and surrogates.
UNSAFE_CHARACTER = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_UNSAFE_IN_LINES = re.compile(UNSAFE_CHARACTER.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SEPARATORS = "/*$#?[]\\"  # of paths, of patterns, and of Zenoh's key expressions


def escape_text(text: str, max_chars: int | None = None, *, keep_lines: bool = False) -> str:
    """The text with every unsafe character written out, such as `\\x1b`; `keep_lines` keeps line ends and tabs."""
    escaped = (_UNSAFE_IN_LINES if keep_lines else UNSAFE_CHARACTER).sub(_write_out, text)
    return escaped if max_chars is None or len(escaped) <= max_chars else f"{escaped[: max_chars - 1]}…"


def _write_out(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def escape_strings(value: Any, *, multiline: tuple[str, ...] = ()) -> Any:
    """The value with all strings in it escaped, however deep; the fields named `multiline` keep their line ends."""
    if isinstance(value, str):
        return escape_text(value)
    if isinstance(value, msgspec.Struct):
        changed = {}
        for name in value.__struct_fields__:
            before = getattr(value, name)
            if name in multiline and isinstance(before, str):
                after = escape_text(before, keep_lines=True)
            else:
                after = escape_strings(before, multiline=multiline)
            if after is not before:
                changed[name] = after
        return msgspec.structs.replace(value, **changed) if changed else value
    if isinstance(value, dict):
        pairs = {escape_strings(key): escape_strings(each, multiline=multiline) for key, each in value.items()}
        return pairs if _differs(pairs, value) else value
    if isinstance(value, list | tuple) and not all(type(each) in (int, float, bool) for each in value):
        items = [escape_strings(each, multiline=multiline) for each in value]
        if all(after is before for after, before in zip(items, value, strict=True)):
            return value
        return items if isinstance(value, list) else tuple(items)
    return value


def _differs(pairs: dict[Any, Any], before: dict[Any, Any]) -> bool:
    return len(pairs) != len(before) or any(key not in before or each is not before[key] for key, each in pairs.items())


def name_refusal(name: str) -> str | None:
    """Why this cannot be the name of a device, None if it can: names are shown, and are parts of keys and of paths."""
    if not name:
        return "a name must not be empty"
    if len(name) > MAX_NAME_CHARS:
        return f"name {escape_text(name, 20)!r} has {len(name)} characters; use at most {MAX_NAME_CHARS}"
    if name.strip(".") == "":
        return f"name {name!r} means a folder; choose another"
    if any(character.isspace() or character in _SEPARATORS for character in name):
        return f"name '{escape_text(name)}' must not contain spaces or any of {' '.join(_SEPARATORS)}"
    if UNSAFE_CHARACTER.search(name):
        return f"name '{escape_text(name)}' must not contain characters that cannot be seen"
    return None

"""Public class names and module names are unique, and none uses a word that the glossary rules out."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "potluck").rglob("*.py"))
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
REPEATED_STEMS = {"__init__", "settings", "messages"}
KEPT = {
    "Pace": "one of the words of loops/node.py",
    "local_host_names": "the operating system's word for a machine's name",
    "mdns_host_names": "the same",
}


def glossary_rows() -> list[tuple[str, str, list[str]]]:
    """The word, its meaning and the words not to use, of each line of the table."""
    rows = []
    for line in GLOSSARY.splitlines():
        if not line.startswith("| ") or line.startswith("| word |"):
            continue
        word, meaning, avoided = (cell.strip() for cell in line.strip("|").split("|"))
        rows.append((word, meaning, [item.strip() for item in avoided.split(",") if item.strip()]))
    return rows


def definitions(path: Path) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def test_a_public_class_name_is_used_once() -> None:
    names = Counter(
        node.name
        for path in SOURCES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_a_module_name_is_used_once() -> None:
    stems = Counter(path.stem for path in SOURCES if path.stem not in REPEATED_STEMS)
    assert [stem for stem, count in stems.items() if count > 1] == []


def test_the_glossary_is_sorted_and_has_no_word_twice() -> None:
    words = [word.lower() for word, _, _ in glossary_rows()]
    assert len(words) > 80
    assert words == sorted(set(words), key=lambda word: re.sub(r"[^a-z]", "", word))


def test_every_word_of_the_glossary_has_a_meaning_and_is_not_ruled_out_by_another() -> None:
    words = {word.lower() for word, _, _ in glossary_rows()}
    for word, meaning, avoided in glossary_rows():
        assert meaning, word
        assert not words & set(avoided), word


def test_every_word_of_the_glossary_is_used_by_the_code() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES).lower()
    squeezed = re.sub(r"[^a-z0-9]", "", text)
    missing = [word for word, _, _ in glossary_rows() if re.sub(r"[^a-z0-9]", "", word.lower()) not in squeezed]
    assert missing == []


def test_names_use_the_words_of_the_glossary() -> None:
    ruled_out = {word for _, _, avoided in glossary_rows() for word in avoided}
    for path in SOURCES:
        names = [path.stem, *(node.name for node in definitions(path))]
        assert [name for name in names if name not in KEPT and words_of(name) & ruled_out] == [], path

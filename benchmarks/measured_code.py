"""A digest of the code that a benchmark measures, by which the results page tells whether a result is still current.

Comments, docstrings and formatting do not count: only what is executed does. Paths are relative to the checkout; one
that starts with `!` is left out, with everything below it.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

__all__ = ["LIVE_PACKAGE", "SIMULATED_PACKAGE", "code_digest", "code_of_benchmark"]

_CHECKOUT = Path(__file__).resolve().parents[1]
_SHOWN = ("!src/potluck/report", "!src/potluck/job_schema.py")  # reads results and settings; affects no run
LIVE_PACKAGE = ("src/potluck", *_SHOWN)
SIMULATED_PACKAGE = (*LIVE_PACKAGE, "!src/potluck/cli", "!src/potluck/worlds/live")


def code_of_benchmark(module: str, measures: Sequence[str] = ()) -> tuple[str, ...]:
    """The paths that a benchmark measures: those that it declares, or the whole package; and its own files."""
    declared = any(not path.startswith("!") for path in measures)
    own = module.replace(".", "/")
    own = own if (_CHECKOUT / own).is_dir() else f"{own}.py"
    return (*(() if declared else ("src/potluck",)), own, *measures)


def code_digest(paths: Sequence[str], checkout: Path = _CHECKOUT) -> str:
    """A digest of all files below these paths; a path that does not exist counts as empty."""
    digest = hashlib.blake2b(digest_size=12)
    left_out = tuple(checkout / path[1:] for path in paths if path.startswith("!"))
    files = {
        file
        for path in paths
        if not path.startswith("!")
        for file in _files_below(checkout / path)
        if not any(file == folder or folder in file.parents for folder in left_out)
    }
    for file in sorted(files):
        digest.update(f"{file.relative_to(checkout).as_posix()}\0{_file_digest(file)}\0".encode())
    return digest.hexdigest()


def _files_below(path: Path) -> Iterator[Path]:
    """Hidden folders hold caches and environments, not code."""
    if path.is_file():
        yield path
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        yield from (Path(folder) / name for name in names)


@cache
def _file_digest(file: Path) -> str:
    content = file.read_bytes()
    if file.suffix == ".py":
        content = "".join(_describe_node(ast.parse(content))).encode()
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def _describe_node(node: object) -> Iterator[str]:
    """The syntax tree as text, without docstrings and empty fields, so that it is the same for every Python version."""
    if isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if value is not None and value != []:
                yield f" {name}="
                yield from _describe_node(value)
        yield ")"
    elif isinstance(node, list):
        for item in node:
            if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)):
                yield from _describe_node(item)
    else:
        yield repr(node)

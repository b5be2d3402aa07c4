"""A digest of the code that a benchmark measures, by which the results page tells whether a result is still current.

Comments, docstrings and formatting do not count: only what is executed does. Paths are relative to the checkout; one
that starts with `!` is left out, with everything below it. What a benchmark imports from other benchmarks, or names as
`benchmarks.module:function` in a job, is found in its files; what declares, records and draws does not count.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

__all__ = ["LIVE_PACKAGE", "SIMULATED_PACKAGE", "code_digest", "code_of_benchmark"]

_CHECKOUT = Path(__file__).resolve().parents[1]
_SHOWN = ("!src/potluck/report", "!src/potluck/job_schema.py")  # reads results and settings; affects no run
_HARNESS = frozenset(
    f"benchmarks.{name}"
    for name in (
        "benchmark", "benchmark_catalogue", "benchmark_figures", "benchmark_progress", "benchmark_report",
        "benchmark_runner", "machine_info", "measured_code",
    )
)  # fmt: skip
_MODULE = re.compile(r"(benchmarks(?:\.\w+)+)(?::.*)?")  # a module, or a function in one, as a job names it
LIVE_PACKAGE = ("src/potluck", *_SHOWN)
SIMULATED_PACKAGE = (*LIVE_PACKAGE, "!src/potluck/cli", "!src/potluck/worlds/live")


def code_of_benchmark(module: str, measures: Sequence[str] = (), checkout: Path = _CHECKOUT) -> tuple[str, ...]:
    """The paths that a benchmark measures: those declared, or the whole package; its own files; what these import."""
    declared = any(not path.startswith("!") for path in measures)
    own = module.replace(".", "/")
    own = own if (checkout / own).is_dir() else f"{own}.py"
    paths = (*(() if declared else ("src/potluck",)), own, *measures)
    return (*paths, *_imported_files(paths, checkout))


def _imported_files(paths: Sequence[str], checkout: Path) -> list[str]:
    """The files of other benchmarks that those below the paths import, directly or not."""
    given = _files_of([path for path in paths if not path.startswith("src/")], checkout)
    found, new = set(given), set(given)
    while new:
        named = {file for each in new if each.suffix == ".py" for file in _files_named_in(each, checkout)}
        new = {file for file in named - found if not _is_below(file, _left_out(paths, checkout))}
        found |= new
    return sorted(file.relative_to(checkout).as_posix() for file in found - given)


@cache
def _files_named_in(file: Path, checkout: Path) -> frozenset[Path]:
    """The files of the benchmarks' modules that a file names; of a package, only if something is taken from itself."""
    named = {name for node in ast.walk(ast.parse(file.read_bytes())) for name in _named_modules(node, checkout)}
    paths = [checkout / name.replace(".", "/") for name in named if name not in _HARNESS]
    paths = [path / "__init__" if path.is_dir() else path for path in paths]
    return frozenset(each for path in paths if (each := path.with_suffix(".py")).is_file())


def _named_modules(node: ast.AST, checkout: Path) -> Iterator[str]:
    """`from benchmarks.x import y` may name the module `benchmarks.x.y`, or `benchmarks.x` that defines y."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "benchmarks":
        folder = checkout / str(node.module).replace(".", "/")
        for alias in node.names:
            is_module = (folder / alias.name).is_dir() or (folder / f"{alias.name}.py").is_file()
            yield f"{node.module}.{alias.name}" if is_module else str(node.module)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if _MODULE.fullmatch(alias.name))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (found := _MODULE.fullmatch(node.value)):
        yield found[1]


def code_digest(paths: Sequence[str], checkout: Path = _CHECKOUT) -> str:
    """A digest of all files below these paths; a path that does not exist counts as empty."""
    digest = hashlib.blake2b(digest_size=12)
    for file in sorted(_files_of(paths, checkout)):
        digest.update(f"{file.relative_to(checkout).as_posix()}\0{_file_digest(file)}\0".encode())
    return digest.hexdigest()


def _files_of(paths: Sequence[str], checkout: Path) -> set[Path]:
    """All files below the paths that are not left out."""
    left_out = _left_out(paths, checkout)
    named = [path for path in paths if not path.startswith("!")]
    return {file for path in named for file in _files_below(checkout / path) if not _is_below(file, left_out)}


def _left_out(paths: Sequence[str], checkout: Path) -> tuple[Path, ...]:
    return tuple(checkout / path[1:] for path in paths if path.startswith("!"))


def _is_below(file: Path, folders: Sequence[Path]) -> bool:
    return any(file == folder or folder in file.parents for folder in folders)


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

"""Measures how easily things are found in src/potluck; needs nothing beside the standard library.

    python scripts/house.py                          a table of the figures; -v lists what is behind them
    python scripts/house.py --json after.json        saves them
    python scripts/house.py --compare before.json    shows them beside saved ones
    python scripts/house.py --root DIR               measures another checkout
    python scripts/house.py stops                    follows `potluck run` and `potluck join`; `all` does both

What is counted, always over every *.py file below src/potluck, the benchmarks included:

files, lines        physical lines, blank ones and comments too
classes             `class` statements at the top level of a module; the few inside functions and classes are left out
functions           every `def` and `async def`, methods and nested functions too; lambdas are not
shared names        classes whose exact name another class has too: all of them, and those without a leading underscore
module names        file stems that several files have, apart from __init__, settings and messages
one word            functions whose name has no underscore once leading ones are stripped, of all that are no dunders
one importer        modules (a package is its __init__) that exactly one other module of src/potluck imports, at its
                    top, in a function or for types only. `from potluck.a import b` imports potluck.a.b where that is
                    a module, and potluck.a otherwise; relative imports are resolved, names in strings are not looked at
small, one importer those of them that have fewer than 70 lines
mirror tests        modules X/Y.py, other than __init__, for which there is tests/X/test_Y.py
long functions      more than 46 lines from `def` to the end of the body, decorators left out
many parameters     more than six, self and cls left out, *args and **kwargs one each
large files         more than 300 and more than 400 lines
stops               see below

With these definitions the tree that house_before.json was made of has 444 files, of whose modules 172 have exactly one
importer, and 694 classes, of which 180 share a name; 78.8 % of its functions are one word (79.6 % without the
benchmarks, 80.5 % of those without a leading underscore). Classes at any depth would be 697 and 182.

Stops are the functions of src/potluck, by module and qualified name, that one has to open to follow a command down to
what it is about. A small job is run by the command line's own `main` under a profile function; whenever one of the
targets is called for the first time, the functions on the stack are noted, and the number of stops is that of the
distinct functions in all these stacks. A stack goes through hand-overs: from a coroutine to where its task was made,
from a thread or a callback to who asked for it. The event loop's own functions and those without a name are left out.

run     targets: the coordinator's first round, the summary written, the summary printed
join    targets of the device: a session opened, the question at the door asked, the device's loop begun; of its
        coordinator, which is a process of its own on loopback: the token checked, the device admitted

It is a measure of depth, not of all there is to read: a function that has returned by then is no stop unless it is a
target. A target must be called in one of Python's own threads. Where targets have been renamed, `--targets` and
`--join-targets` say what they are called now.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

SMALL, LONG_FUNCTION, MANY_PARAMETERS = 70, 46, 6
OFTEN = ("__init__", "settings", "messages")  # stems that every room may have
RUN_TARGETS = (
    "potluck.loops.rounds:RoundsCoordinator._run_round",
    "potluck.run.run_store:RunStore.finish_run",
    "potluck.cli.summary_text:print_summary",
)
JOIN_TARGETS = (
    "potluck.worlds.live.zenoh_session:open_session",
    "potluck.worlds.live.join_handshake:_query_first_reply",
    "potluck.loops.rounds_device:RoundsDevice.main",
    "potluck.worlds.live.security.admission_policy:AdmissionPolicy.refusal_reason",
    "potluck.worlds.live.coordinator_runtime:_CoordinatorRuntime._admit_device",
)
JOB = """recipe = "fedavg"

[task]
model = "mlp"
data = { kind = "synthetic", train = 64, test = 16 }
options = { hidden = [8] }

[[fleet.devices]]
name = "d"
flops = "20 MFLOP/s"

[stop]
rounds = 2
"""
LIMIT_S = 120.0
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Figures(NamedTuple):
    """Figures by their label, and what is behind some of them."""

    numbers: dict[str, float]
    lists: dict[str, list[str]]


# --- what the files say ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A module: its name, its path below src/potluck and its text."""

    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @cached_property
    def functions(self) -> list[Function]:
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.tree.body if isinstance(node, ast.ClassDef)]

    @property
    def package(self) -> str:
        return self.name if self.path.stem == "__init__" else self.name.rpartition(".")[0]

    def place(self, node: Function | ast.ClassDef) -> str:
        return f"{self.path}:{node.lineno} {node.name}"


def read_sources(root: Path) -> list[Source]:
    base = root / "src" / "potluck"
    if not base.is_dir():
        raise SystemExit(f"error: {base} is not there")
    paths = sorted(path.relative_to(base) for path in base.rglob("*.py"))
    return [Source(module_name(path), path, (base / path).read_text(encoding="utf-8")) for path in paths]


def module_name(path: Path) -> str:
    """Of a file below src/potluck."""
    parts = path.with_suffix("").parts
    return ".".join(("potluck", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imported_modules(source: Source, known: frozenset[str]) -> set[str]:
    """Which of the known modules a module imports."""
    found: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(node, source.package)
            inner = {alias.name: f"{base}.{alias.name}" for alias in node.names}
            found.update(module if module in known else base for module in inner.values())
    return (found & known) - {source.name}


def absolute_base(node: ast.ImportFrom, package: str) -> str:
    """What `from … import` starts from, with its dots resolved."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def count_parameters(function: Function) -> int:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args]
    if named and named[0].arg in ("self", "cls"):
        named = named[1:]
    return len([*named, *arguments.kwonlyargs, *filter(None, (arguments.vararg, arguments.kwarg))])


def count_lines(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def by_name(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """The names that occur more than once, each with its places."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for name, place in pairs:
        places[name].append(place)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def in_words(shared: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{name}: {', '.join(places)}" for name, places in shared.items()]


def measure(root: Path) -> Figures:
    """All but the stops."""
    sources = read_sources(root)
    parts = (sizes(sources), names(sources), importers(sources), mirrors(sources, root), extremes(sources))
    return join_figures(*parts)


def join_figures(*parts: Figures) -> Figures:
    numbers = {label: number for part in parts for label, number in part.numbers.items()}
    return Figures(numbers, {label: found for part in parts for label, found in part.lists.items()})


def sizes(sources: Sequence[Source]) -> Figures:
    numbers = {
        "files": len(sources),
        "lines": sum(source.lines for source in sources),
        "classes": sum(len(source.classes) for source in sources),
        "functions": sum(len(source.functions) for source in sources),
    }
    return Figures(dict(numbers), {})


def names(sources: Sequence[Source]) -> Figures:
    classes = by_name([(node.name, str(source.path)) for source in sources for node in source.classes])
    public = {name: places for name, places in classes.items() if not name.startswith("_")}
    stems = [(source.path.stem, str(source.path)) for source in sources if source.path.stem not in OFTEN]
    modules = by_name(stems)
    functions = [node.name for source in sources for node in source.functions if not is_dunder(node.name)]
    bare = sum("_" not in name.lstrip("_") for name in functions)
    numbers = {
        "classes that share a name": sum(map(len, classes.values())),
        "public classes that share a name": sum(map(len, public.values())),
        "public names of several classes": len(public),
        "module names used more than once": len(modules),
        "modules that share a name": sum(map(len, modules.values())),
        "functions of one word": bare,
        "functions of one word, %": percentage(bare, len(functions)),
    }
    private = {name: places for name, places in classes.items() if name not in public}
    return Figures(
        dict(numbers),
        {
            "public names of several classes": in_words(public),
            "private names of several classes": in_words(private),
            "module names used more than once": in_words(modules),
        },
    )


def importers(sources: Sequence[Source]) -> Figures:
    known = frozenset(source.name for source in sources)
    counts = Counter(module for source in sources for module in imported_modules(source, known))
    once = [source for source in sources if counts[source.name] == 1]
    small = [source for source in once if source.lines < SMALL]
    label = f"modules with one importer, under {SMALL} lines"
    listed = [f"{source.path} ({source.lines})" for source in small]
    return Figures({"modules with one importer": len(once), label: len(small)}, {label: listed})


def mirrors(sources: Sequence[Source], root: Path) -> Figures:
    modules = [source.path for source in sources if source.path.stem != "__init__"]
    tested = sum((root / "tests" / path.parent / f"test_{path.name}").is_file() for path in modules)
    share = percentage(tested, len(modules))
    return Figures({"modules with a mirror test": tested, "modules with a mirror test, %": share}, {})


def extremes(sources: Sequence[Source]) -> Figures:
    each = [(source, node) for source in sources for node in source.functions]
    lengths = [(count_lines(node), source.place(node)) for source, node in each if count_lines(node) > LONG_FUNCTION]
    counts = [
        (count_parameters(node), source.place(node))
        for source, node in each
        if count_parameters(node) > MANY_PARAMETERS
    ]
    files = [(source.lines, str(source.path)) for source in sources if source.lines > 300]
    lists = {
        f"functions of more than {LONG_FUNCTION} lines": longest_first(lengths),
        "functions of more than six parameters": longest_first(counts),
        "files of more than 300 lines": longest_first(files),
    }
    numbers: dict[str, float] = {label: len(found) for label, found in lists.items()}
    return Figures({**numbers, "files of more than 400 lines": sum(lines > 400 for lines, _ in files)}, lists)


def longest_first(found: Sequence[tuple[int, str]]) -> list[str]:
    return [f"{number:5d} {place}" for number, place in sorted(found, key=lambda entry: (-entry[0], entry[1]))]


def percentage(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 0.0


# --- stops ----------------------------------------------------------------------------------------------------------

Stops = list[str]  # from the top down
_origins: weakref.WeakKeyDictionary[asyncio.Task[Any], Stops] = weakref.WeakKeyDictionary()


def carried(origin: Stops, callback: Callable[..., Any], *args: Any) -> Any:
    """Call something on another stack; `origin` is found there by who walks it."""
    return callback(*args)


class Trace:
    """Notes the stack at the first call of each target, in every thread."""

    def __init__(self, source: Path, targets: Sequence[str]) -> None:
        self._below = f"{source}{os.sep}"
        self._targets = set(targets)
        self._qualnames = {target.partition(":")[2] for target in targets}
        self.found: dict[str, Stops] = {}

    def start(self) -> None:
        self._follow_hand_overs()
        threading.setprofile(self._look)
        sys.setprofile(self._look)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _look(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_qualname in self._qualnames:
            name = self._name(frame)
            if name in self._targets and name not in self.found:
                self.found[name] = self.stack(frame)

    def _name(self, frame: FrameType) -> str:
        """Module and qualified name of a function of ours; nothing for all else."""
        path, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if not path.startswith(self._below) or name.endswith(">"):
            return ""
        return f"{module_name(Path(path[len(self._below) :]))}:{name}"

    def stack(self, frame: FrameType | None) -> Stops:
        """Our functions from the top down to this frame."""
        found: Stops = []
        origin: Stops = []
        while frame is not None:
            if frame.f_code is carried.__code__:
                origin = frame.f_locals["origin"]
                break
            if frame.f_code.co_name == "_run_once":  # the event loop
                task = asyncio.current_task()
                origin = _origins.get(task, []) if task is not None else []
                break
            name = self._name(frame)
            if name:
                found.append(name)
            frame = frame.f_back
        return [*origin, *reversed(found)]

    def _follow_hand_overs(self) -> None:
        """Tasks, threads and callbacks remember who asked for them."""
        loops: Any = asyncio.BaseEventLoop
        create, call, execute = loops.create_task, loops.call_soon_threadsafe, loops.run_in_executor

        def create_task(loop: Any, *args: Any, **options: Any) -> Any:
            task = create(loop, *args, **options)
            _origins[task] = self.stack(sys._getframe(1))
            return task

        def call_soon_threadsafe(loop: Any, callback: Any, *args: Any, **options: Any) -> Any:
            return call(loop, carried, self.stack(sys._getframe(1)), callback, *args, **options)

        def run_in_executor(loop: Any, executor: Any, function: Any, *args: Any) -> Any:
            return execute(loop, executor, carried, self.stack(sys._getframe(1)), function, *args)

        loops.create_task, loops.call_soon_threadsafe = create_task, call_soon_threadsafe
        loops.run_in_executor = run_in_executor


def trace(root: Path, targets: Sequence[str], into: Path, words: Sequence[str]) -> None:
    """Run a command in this process and write down the stacks that were found."""
    source = (root / "src" / "potluck").resolve()
    sys.path.insert(0, str(source.parent))
    from potluck.cli import main

    tracing = Trace(source, targets)
    tracing.start()
    try:
        main(list(words))
    finally:
        tracing.stop()
        into.write_text(json.dumps(tracing.found))


class Traced:
    """A command under way in a process of its own; as a context, it is ended with it."""

    def __init__(self, root: Path, targets: Sequence[str], folder: Path, *words: str) -> None:
        self._said, self._found = folder / f"{words[0]}.txt", folder / f"{words[0]}.json"
        options = ["--root", str(root), "--targets", ",".join(targets), "--json", str(self._found)]
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, __file__, *options, "--", "trace", *words],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str((root / "src").resolve())},
            )

    def __enter__(self) -> Traced:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Until it says something."""
        until = time.monotonic() + LIMIT_S
        while (found := re.search(pattern, self.said)) is None:
            if self._process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"error: a command did not say {pattern!r}:\n{self.said}")
            time.sleep(0.05)
        return found

    def result(self) -> dict[str, Stops]:
        if self._process.wait(LIMIT_S) != 0:
            raise SystemExit(f"error: a command failed:\n{self.said}")
        found: dict[str, Stops] = json.loads(self._found.read_text())
        return found


def count_stops(root: Path, run_targets: Sequence[str], join_targets: Sequence[str]) -> Figures:
    ways = {"run": (follow_run, run_targets), "join": (follow_join, join_targets)}
    numbers: dict[str, float] = {}
    lists: dict[str, list[str]] = {}
    for verb, (follow, targets) in ways.items():
        with tempfile.TemporaryDirectory() as name:
            found = follow(root, targets, Path(name))
        missed = [target for target in targets if target not in found]
        if missed:
            raise SystemExit(f"error: `potluck {verb}` did not call {', '.join(missed)}; give its targets anew")
        label = f"stops of `potluck {verb}`"
        lists[label] = list(dict.fromkeys(stop for target in targets for stop in found[target]))
        numbers[label] = len(lists[label])
    return Figures(numbers, lists)


def follow_run(root: Path, targets: Sequence[str], folder: Path) -> dict[str, Stops]:
    job = write_job(folder)
    with Traced(root, targets, folder, "run", str(job), "--out", str(folder / "kept")) as running:
        return running.result()


def follow_join(root: Path, targets: Sequence[str], folder: Path) -> dict[str, Stops]:
    """Every target is looked for on both sides; the device's stack counts where both call it."""
    job = write_job(folder)
    address = free_address()
    with Traced(
        root, targets, folder, "serve", str(job), "--listen", address, "--out", str(folder / "kept")
    ) as serving:
        token = serving.wait_for(r"--token (\S+)")[1]
        words = ("join", f"tcp/{address}", "--name", "d", "--once", "--token", token)
        with Traced(root, targets, folder, *words) as joining:
            ours = joining.result()
        return {**serving.result(), **ours}


def write_job(folder: Path) -> Path:
    path = folder / "job.toml"
    path.write_text(JOB)
    return path


def free_address() -> str:
    """A loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


# --- what is shown --------------------------------------------------------------------------------------------------


def table(numbers: Mapping[str, float], before: Mapping[str, float] | None) -> Iterator[str]:
    """One line for each figure; with earlier ones, these and the change as well."""
    labels = [*numbers, *(label for label in before or {} if label not in numbers)]
    width = max(map(len, labels))
    if before is not None:
        yield f"{'':{width}}  {'before':>8}  {'after':>8}  {'change':>8}"
    for label in labels:
        now = numbers.get(label)
        if before is None:
            yield f"{label:{width}}  {shown(now):>8}"
            continue
        then = before.get(label)
        change = "" if now is None or then is None else f"{round(now - then, 1):+,g}"
        yield f"{label:{width}}  {shown(then):>8}  {shown(now):>8}  {change:>8}"


def shown(number: float | None) -> str:
    if number is None:
        return "–"
    return f"{number:,.1f}" if isinstance(number, float) else f"{number:,}"


def listed(lists: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for label, found in lists.items():
        yield f"\n{label} ({len(found)})"
        yield from (f"  {line}" for line in found)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("what", nargs="?", default="table", choices=("table", "stops", "all", "trace"))
    parser.add_argument("words", nargs="*", help="the command that `trace` runs; it is what `stops` starts")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the checkout to measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the figures")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="show saved figures beside these")
    parser.add_argument("--targets", default=",".join(RUN_TARGETS), metavar="MODULE:QUALNAME,…", help="of `run`")
    parser.add_argument("--join-targets", default=",".join(JOIN_TARGETS), metavar="MODULE:QUALNAME,…", help="of `join`")
    parser.add_argument("-v", "--verbose", action="store_true", help="list what is behind the figures")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    given = parse(argv)
    if given.what == "trace":
        trace(given.root, given.targets.split(","), given.json, given.words)
        return
    parts = []
    if given.what != "stops":
        parts.append(measure(given.root))
    if given.what != "table":
        parts.append(count_stops(given.root, given.targets.split(","), given.join_targets.split(",")))
    figures = join_figures(*parts)
    before = json.loads(given.compare.read_text()) if given.compare is not None else None
    lines = [*table(figures.numbers, before), *(listed(figures.lists) if given.verbose else ())]
    sys.stdout.write("\n".join(lines) + "\n")
    if given.json is not None:
        given.json.write_text(json.dumps(figures.numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()

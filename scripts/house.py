"""Measures how easy src/potluck is to navigate; uses only the standard library.

    python scripts/house.py                          prints a table of the figures; -v lists the items behind them
    python scripts/house.py --json after.json        saves the figures
    python scripts/house.py --compare before.json    shows them beside saved ones
    python scripts/house.py --root DIR               measures another checkout
    python scripts/house.py stops                    counts the stops of `potluck run` and `potluck join`; `all`: both

Every figure covers all *.py files below src/potluck:

files, lines        physical lines, including blank lines and comments
classes             `class` statements at the top level of a module, not those inside functions and classes
functions           every `def` and `async def`, including methods and nested functions, but no lambdas
shared names        classes with the same name as another class: all of them, and those without a leading underscore
module names        file stems that several files have, except __init__, settings and messages
one word            functions, dunders excepted, whose name has no underscore apart from leading ones
one importer        modules (a package is its __init__) that exactly one other module of src/potluck imports: at the
                    top, inside a function, or for type checking. `from potluck.a import b` imports potluck.a.b if that
                    is a module, otherwise potluck.a; relative imports are resolved, names in strings are ignored
small, one importer those of them with fewer than 70 lines
mirror tests        modules X/Y.py, except __init__, with a test file tests/X/test_Y.py
long functions      more than 46 lines from `def` to the end of the body, without decorators
many parameters     more than six, without self and cls; *args and **kwargs count as one each
large files         more than 300 and more than 400 lines
stops               see below

By these definitions, the tree behind house_before.json has 444 files, 172 modules with exactly one importer, and 694
classes, 180 of which share a name; 78.8 % of its functions are one word (79.6 % without the benchmarks, 80.5 % of those
without a leading underscore). Classes at any depth would be 697 and 182.

Stops are the functions of src/potluck, by module and qualified name, that a reader has to open to follow a command down
to its core. The command line's own `main` runs a small job under a profile function. The first call of each target
records the functions on the stack; the number of stops is the number of distinct functions in all these stacks. A stack
continues across hand-overs: from a coroutine to the code that created its task, from a thread or a callback to the code
that requested it. The event loop's own functions and unnamed ones are left out.

run     targets: the coordinator's first round, the summary being written, the summary being printed
join    targets on the device: the session is opened, the join request is sent, the device's loop starts; on its
        coordinator, a separate process on loopback: the token is checked, the device is admitted

This measures depth, not everything there is to read: a function that has already returned is no stop unless it is a
target. A target must be called in one of Python's own threads. If targets have been renamed, pass their new names with
`--targets` and `--join-targets`.
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
COMMON_STEMS = ("__init__", "settings", "messages")  # every package may have these
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
    """Figures by label, and the items behind some of them."""

    numbers: dict[str, float]
    lists: dict[str, list[str]]


# --- figures from the source files ----------------------------------------------------------------------------------


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

    def location(self, node: Function | ast.ClassDef) -> str:
        return f"{self.path}:{node.lineno} {node.name}"


def read_sources(root: Path) -> list[Source]:
    base = root / "src" / "potluck"
    if not base.is_dir():
        raise SystemExit(f"error: {base} does not exist; pass a checkout with --root")
    paths = sorted(path.relative_to(base) for path in base.rglob("*.py"))
    return [Source(module_name(path), path, (base / path).read_text(encoding="utf-8")) for path in paths]


def module_name(path: Path) -> str:
    """The dotted name of a file below src/potluck."""
    parts = path.with_suffix("").parts
    return ".".join(("potluck", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imported_modules(source: Source, known: frozenset[str]) -> set[str]:
    """Which of the known modules a module imports."""
    imported: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(node, source.package)
            inner = {alias.name: f"{base}.{alias.name}" for alias in node.names}
            imported.update(module if module in known else base for module in inner.values())
    return (imported & known) - {source.name}


def absolute_base(node: ast.ImportFrom, package: str) -> str:
    """The module named in `from … import`, with leading dots resolved."""
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
    """The names that occur more than once, each with its locations."""
    locations: defaultdict[str, list[str]] = defaultdict(list)
    for name, location in pairs:
        locations[name].append(location)
    return {name: several for name, several in sorted(locations.items()) if len(several) > 1}


def describe_shared(shared: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{name}: {', '.join(locations)}" for name, locations in shared.items()]


def measure(root: Path) -> Figures:
    """All figures except the stops."""
    sources = read_sources(root)
    parts = (sizes(sources), names(sources), importers(sources), mirrors(sources, root), extremes(sources))
    return join_figures(*parts)


def join_figures(*parts: Figures) -> Figures:
    numbers = {label: number for part in parts for label, number in part.numbers.items()}
    return Figures(numbers, {label: items for part in parts for label, items in part.lists.items()})


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
    public = {name: paths for name, paths in classes.items() if not name.startswith("_")}
    stems = [(source.path.stem, str(source.path)) for source in sources if source.path.stem not in COMMON_STEMS]
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
    private = {name: paths for name, paths in classes.items() if name not in public}
    return Figures(
        dict(numbers),
        {
            "public names of several classes": describe_shared(public),
            "private names of several classes": describe_shared(private),
            "module names used more than once": describe_shared(modules),
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
    percent = percentage(tested, len(modules))
    return Figures({"modules with a mirror test": tested, "modules with a mirror test, %": percent}, {})


def extremes(sources: Sequence[Source]) -> Figures:
    each = [(source, node) for source in sources for node in source.functions]
    lengths = [(count_lines(node), source.location(node)) for source, node in each if count_lines(node) > LONG_FUNCTION]
    counts = [
        (count_parameters(node), source.location(node))
        for source, node in each
        if count_parameters(node) > MANY_PARAMETERS
    ]
    files = [(source.lines, str(source.path)) for source in sources if source.lines > 300]
    lists = {
        f"functions of more than {LONG_FUNCTION} lines": longest_first(lengths),
        "functions of more than six parameters": longest_first(counts),
        "files of more than 300 lines": longest_first(files),
    }
    numbers: dict[str, float] = {label: len(items) for label, items in lists.items()}
    return Figures({**numbers, "files of more than 400 lines": sum(lines > 400 for lines, _ in files)}, lists)


def longest_first(items: Sequence[tuple[int, str]]) -> list[str]:
    return [f"{number:5d} {location}" for number, location in sorted(items, key=lambda entry: (-entry[0], entry[1]))]


def percentage(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 0.0


# --- stops ----------------------------------------------------------------------------------------------------------

Stops = list[str]  # from the top down
_origins: weakref.WeakKeyDictionary[asyncio.Task[Any], Stops] = weakref.WeakKeyDictionary()


def call_with_origin(origin: Stops, callback: Callable[..., Any], *args: Any) -> Any:
    """Call something on another stack, where `Trace.stack` reads `origin` from this frame."""
    return callback(*args)


class Trace:
    """Records the stack at the first call of each target, in every thread."""

    def __init__(self, source: Path, targets: Sequence[str]) -> None:
        self._below = f"{source}{os.sep}"
        self._targets = set(targets)
        self._qualnames = {target.partition(":")[2] for target in targets}
        self.stacks: dict[str, Stops] = {}

    def start(self) -> None:
        self._follow_hand_overs()
        threading.setprofile(self._on_call)
        sys.setprofile(self._on_call)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _on_call(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_qualname in self._qualnames:
            name = self._name(frame)
            if name in self._targets and name not in self.stacks:
                self.stacks[name] = self.stack(frame)

    def _name(self, frame: FrameType) -> str:
        """Module and qualified name of a function of src/potluck; empty for any other."""
        path, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if not path.startswith(self._below) or name.endswith(">"):
            return ""
        return f"{module_name(Path(path[len(self._below) :]))}:{name}"

    def stack(self, frame: FrameType | None) -> Stops:
        """The functions of src/potluck from the top down to this frame."""
        stops: Stops = []
        origin: Stops = []
        while frame is not None:
            if frame.f_code is call_with_origin.__code__:
                origin = frame.f_locals["origin"]
                break
            if frame.f_code.co_name == "_run_once":  # the event loop
                task = asyncio.current_task()
                origin = _origins.get(task, []) if task is not None else []
                break
            name = self._name(frame)
            if name:
                stops.append(name)
            frame = frame.f_back
        return [*origin, *reversed(stops)]

    def _follow_hand_overs(self) -> None:
        """Make tasks, threads and callbacks remember the stack that requested them."""
        loops: Any = asyncio.BaseEventLoop
        create, call, execute = loops.create_task, loops.call_soon_threadsafe, loops.run_in_executor

        def create_task(loop: Any, *args: Any, **options: Any) -> Any:
            task = create(loop, *args, **options)
            _origins[task] = self.stack(sys._getframe(1))
            return task

        def call_soon_threadsafe(loop: Any, callback: Any, *args: Any, **options: Any) -> Any:
            return call(loop, call_with_origin, self.stack(sys._getframe(1)), callback, *args, **options)

        def run_in_executor(loop: Any, executor: Any, function: Any, *args: Any) -> Any:
            return execute(loop, executor, call_with_origin, self.stack(sys._getframe(1)), function, *args)

        loops.create_task, loops.call_soon_threadsafe = create_task, call_soon_threadsafe
        loops.run_in_executor = run_in_executor


def trace(root: Path, targets: Sequence[str], into: Path, words: Sequence[str]) -> None:
    """Run a command in this process and write the recorded stacks to a file."""
    source = (root / "src" / "potluck").resolve()
    sys.path.insert(0, str(source.parent))
    from potluck.cli import main

    tracing = Trace(source, targets)
    tracing.start()
    try:
        main(list(words))
    finally:
        tracing.stop()
        into.write_text(json.dumps(tracing.stacks))


class Traced:
    """A command that runs in its own process; leaving the context kills it."""

    def __init__(self, root: Path, targets: Sequence[str], folder: Path, *words: str) -> None:
        self._output_path, self._stacks_path = folder / f"{words[0]}.txt", folder / f"{words[0]}.json"
        options = ["--root", str(root), "--targets", ",".join(targets), "--json", str(self._stacks_path)]
        with self._output_path.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, __file__, *options, "--", "trace", *words],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
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
    def output(self) -> str:
        return self._output_path.read_text(errors="replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the command prints this."""
        until = time.monotonic() + LIMIT_S
        while (match := re.search(pattern, self.output)) is None:
            if self._process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"error: a command did not print {pattern!r}:\n{self.output}")
            time.sleep(0.05)
        return match

    def result(self) -> dict[str, Stops]:
        if self._process.wait(LIMIT_S) != 0:
            raise SystemExit(f"error: a command failed:\n{self.output}")
        stacks: dict[str, Stops] = json.loads(self._stacks_path.read_text())
        return stacks


def count_stops(root: Path, run_targets: Sequence[str], join_targets: Sequence[str]) -> Figures:
    commands = {"run": (follow_run, run_targets), "join": (follow_join, join_targets)}
    numbers: dict[str, float] = {}
    lists: dict[str, list[str]] = {}
    for verb, (follow, targets) in commands.items():
        with tempfile.TemporaryDirectory() as name:
            stacks = follow(root, targets, Path(name))
        missed = [target for target in targets if target not in stacks]
        if missed:
            option = "--targets" if verb == "run" else "--join-targets"
            raise SystemExit(f"error: `potluck {verb}` did not call {', '.join(missed)}; update {option}")
        label = f"stops of `potluck {verb}`"
        lists[label] = list(dict.fromkeys(stop for target in targets for stop in stacks[target]))
        numbers[label] = len(lists[label])
    return Figures(numbers, lists)


def follow_run(root: Path, targets: Sequence[str], folder: Path) -> dict[str, Stops]:
    job = write_job(folder)
    with Traced(root, targets, folder, "run", str(job), "--out", str(folder / "kept")) as running:
        return running.result()


def follow_join(root: Path, targets: Sequence[str], folder: Path) -> dict[str, Stops]:
    """Trace both sides; if both call a target, the device's stack counts."""
    job = write_job(folder)
    address = free_address()
    with Traced(
        root, targets, folder, "serve", str(job), "--listen", address, "--out", str(folder / "kept")
    ) as serving:
        token = serving.wait_for(r"--token (\S+)")[1]
        words = ("join", f"tcp/{address}", "--name", "d", "--once", "--token", token)
        with Traced(root, targets, folder, *words) as joining:
            device_stacks = joining.result()
        return {**serving.result(), **device_stacks}


def write_job(folder: Path) -> Path:
    path = folder / "job.toml"
    path.write_text(JOB)
    return path


def free_address() -> str:
    """A free loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


# --- output ---------------------------------------------------------------------------------------------------------


def table(numbers: Mapping[str, float], before: Mapping[str, float] | None) -> Iterator[str]:
    """One line per figure; with `before`, also the earlier value and the change."""
    labels = [*numbers, *(label for label in before or {} if label not in numbers)]
    width = max(map(len, labels))
    if before is not None:
        yield f"{'':{width}}  {'before':>8}  {'after':>8}  {'change':>8}"
    for label in labels:
        now = numbers.get(label)
        if before is None:
            yield f"{label:{width}}  {format_figure(now):>8}"
            continue
        then = before.get(label)
        change = "" if now is None or then is None else f"{round(now - then, 1):+,g}"
        yield f"{label:{width}}  {format_figure(then):>8}  {format_figure(now):>8}  {change:>8}"


def format_figure(number: float | None) -> str:
    if number is None:
        return "–"
    return f"{number:,.1f}" if isinstance(number, float) else f"{number:,}"


def list_items(lists: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for label, items in lists.items():
        yield f"\n{label} ({len(items)})"
        yield from (f"  {line}" for line in items)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("what", nargs="?", default="table", choices=("table", "stops", "all", "trace"))
    parser.add_argument("words", nargs="*", help="the command that `trace` runs; `stops` uses it internally")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the checkout to measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the figures")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="show saved figures beside these")
    parser.add_argument(
        "--targets", default=",".join(RUN_TARGETS), metavar="MODULE:QUALNAME,…", help="targets of `run`"
    )
    parser.add_argument(
        "--join-targets", default=",".join(JOIN_TARGETS), metavar="MODULE:QUALNAME,…", help="targets of `join`"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="list the items behind the figures")
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
    lines = [*table(figures.numbers, before), *(list_items(figures.lists) if given.verbose else ())]
    sys.stdout.write("\n".join(lines) + "\n")
    if given.json is not None:
        given.json.write_text(json.dumps(figures.numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()

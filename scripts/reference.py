"""Writes docs/reference: every key of job.toml and fleet.toml, from the settings classes (`make reference`).

python scripts/reference.py            writes the pages
python scripts/reference.py --check    says which pages are out of date, and exits with 1 if any is
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import typer

from potluck.data import Source
from potluck.data.buffers import BufferPolicy
from potluck.data.data_splits import Split
from potluck.data.streams.settings import StreamSettings
from potluck.data.streams.sources import StreamSource
from potluck.data.streams.stream_rates import StreamRate
from potluck.explore.settings import Exploration
from potluck.fleet import LINKS, PRESETS, CoordinatorMachine, DeviceGroup, Fault, Fleet, Link, Trace
from potluck.job import Job, StopRules, built_in_fleets
from potluck.job_schema import KeyInfo, key_infos, limits_of, summary_line
from potluck.loops.parts.barrier import Barrier
from potluck.loops.parts.batching import Batching
from potluck.loops.parts.lr_scaling import LrScaling
from potluck.loops.parts.model_transfer import ModelTransfer
from potluck.loops.pipeline.partitioning import Partitioning
from potluck.loops.pipeline.recovery import Recovery
from potluck.loops.pipeline.replication import Replication
from potluck.loops.pipeline.settings import Adaptation, Pipeline
from potluck.loops.pipeline.stage_schedules import PipelineSchedule
from potluck.loops.settings import Rounds
from potluck.model.class_skew import SkewCorrection
from potluck.model.codecs import Codec
from potluck.model.local_training import LocalTraining
from potluck.model.lr_schedules import LearningRateSchedule
from potluck.model.optimizers import Optimizer
from potluck.model.submodels import Submodel
from potluck.model.transformers_model import Lora, ModelSource
from potluck.model.update_merging import MergeRule
from potluck.planning.data_injection import Injection
from potluck.recipes import CATALOGUE
from potluck.settings import Part, part_kinds
from potluck.task import TaskSettings
from potluck.units import Bytes, BytesPerSecond, FlopsPerSecond, Quantity, Seconds

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
QUANTITIES = {Seconds: "duration", Bytes: "size", BytesPerSecond: "bandwidth", FlopsPerSecond: "speed"}
PLAIN = {bool: "true or false", int: "integer", float: "number", str: "text", Any: "any value"}
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


class Section(NamedTuple):
    """A table, or a family of parts, with the heading under which it is documented."""

    heading: str
    table: type[msgspec.Struct]


class Page(NamedTuple):
    """One file of the reference."""

    title: str
    introduction: str
    sections: Sequence[Section]


PAGES = {
    "job": Page("job.toml", "The top level of a job, and its small tables.", [
        Section("Top level", Job), Section("[task]", TaskSettings), Section("model", ModelSource),
        Section("lora", Lora), Section("[stop]", StopRules),
    ]),
    "rounds": Page("Rounds", "`[rounds]` and the parts of a round.", [
        Section("[rounds]", Rounds), Section("batching", Batching), Section("local", LocalTraining),
        Section("skew", SkewCorrection), Section("transfer", ModelTransfer), Section("submodel", Submodel),
        Section("codec", Codec), Section("merge", MergeRule), Section("barrier", Barrier),
        Section("server, optimizer", Optimizer), Section("scaling", LrScaling),
        Section("schedule, local_schedule, lr_schedule", LearningRateSchedule),
    ]),
    "pipeline": Page("Pipeline", "`[pipeline]` and its parts; without this table a job runs in rounds.", [
        Section("[pipeline]", Pipeline), Section("[pipeline.adaptation]", Adaptation),
        Section("schedule (pipeline)", PipelineSchedule), Section("partition", Partitioning),
        Section("replication", Replication), Section("recovery", Recovery),
    ]),
    "fleet": Page("fleet.toml", "A fleet file, or the `[fleet]` table of a job.", [
        Section("Top level (fleet)", Fleet), Section("[coordinator]", CoordinatorMachine),
        Section("[[devices]]", DeviceGroup), Section("link", Link), Section("trace", Trace),
        Section("[[faults]]", Fault),
    ]),
    "data": Page("Data", "Data sets, and which device holds what.", [
        Section("task.data", Source), Section("[split]", Split),
    ]),
    "streams": Page("Streams", "`[stream]` and its parts; without this table a device starts with all its samples.", [
        Section("[stream]", StreamSettings), Section("source", StreamSource), Section("rate", StreamRate),
        Section("buffer", BufferPolicy), Section("[stream.injection]", Injection),
    ]),
    "explore": Page("Exploration", "Settings of `potluck explore`, given as `--with KEY=VALUE`.", [
        Section("Keys", Exploration),
    ]),
}  # fmt: skip
ADDRESSES = {
    section.table: (page, section.heading) for page, described in PAGES.items() for section in described.sections
}


def render_pages() -> dict[str, str]:
    """The text of every file of the reference, by name."""
    pages = {f"{name}.md": "\n".join(_page_lines(name, page)) + "\n" for name, page in PAGES.items()}
    pages["fleet.md"] += "\n".join(["", *_preset_lines()]) + "\n"
    pages["recipes.md"] = "\n".join(_recipe_lines()) + "\n"
    pages["README.md"] = "\n".join(_index_lines()) + "\n"
    return pages


def _page_lines(name: str, page: Page) -> Iterator[str]:
    yield from (f"# {page.title}", f"{page.introduction} Generated from the settings classes by `make reference`.")
    for heading, table in page.sections:
        yield from ("", f"## {heading}", _cell(summary_line(table)))
        if issubclass(table, Part):
            yield from _family_lines(name, table)
        else:
            yield from _key_rows(name, list(key_infos(table)))


def _family_lines(page: str, family: type[Part]) -> Iterator[str]:
    """The keys that all kinds share, then each kind with its own."""
    kinds = part_kinds(family)
    keys = {kind: {key.name: key for key in key_infos(part)} for kind, part in kinds.items()}
    shared = [key for key in key_infos(family) if all(keys[kind].get(key.name) == key for kind in kinds)]
    if shared:
        yield from ("", "Keys of every kind:", *_key_rows(page, shared))
    for kind, part in kinds.items():
        yield from ("", f"**`{kind}`**: {_cell(summary_line(part))}")
        own = [key for key in keys[kind].values() if key not in shared]
        if own:
            yield from _key_rows(page, own)


def _key_rows(page: str, keys: Sequence[KeyInfo]) -> Iterator[str]:
    yield from ("", "| key | type | default | meaning |", "|---|---|---|---|")
    for key in keys:
        yield f"| `{key.name}` | {_type_text(key.type, page)} | {_default_text(key)} | {_cell(key.meaning)} |"


def _type_text(wanted: Any, page: str) -> str:
    limits = limits_of(wanted)
    plain = getattr(wanted, "__origin__", wanted) if limits else wanted
    origin, inner = typing.get_origin(plain), typing.get_args(plain)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_text(choice, page) for choice in inner if choice is not types.NoneType)
    if origin is typing.Annotated:
        return _type_text(inner[0], page)
    if origin is typing.Literal:
        return " · ".join(f"`{choice}`" for choice in inner)
    if origin is tuple:
        return f"list of {_type_text(inner[0], page)}"
    if origin is dict:
        return f"table of {_type_text(inner[1], page)}"
    if isinstance(plain, type) and issubclass(plain, Quantity):
        return f"[{QUANTITIES[plain]}](README.md#quantities)"
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
        return _address_text(plain, page)
    bounds = " and ".join(f"{SIGNS[key]} {value:g}" for key, value in limits.items())
    return f"{PLAIN[plain]} {bounds}".strip()


def _address_text(table: type[msgspec.Struct], page: str) -> str:
    if table not in ADDRESSES:
        return "table"
    where, heading = ADDRESSES[table]
    kind = "part" if issubclass(table, Part) else "table"
    return f"[{kind}]({'' if where == page else where + '.md'}#{_anchor(heading)})"


def _default_text(key: KeyInfo) -> str:
    if key.required:
        return "required"
    if key.default is None or key.default == "":
        return ""
    if isinstance(key.default, dict):
        return _default_table(key)
    return f"`{str(key.default).lower() if isinstance(key.default, bool) else key.default}`"


def _default_table(key: KeyInfo) -> str:
    """The kind of a part, with the keys that differ from the kind's own defaults."""
    if "kind" not in key.default:
        return "see the table" if key.default else "`{}`"
    defaults = {each.name: each.default for each in key_infos(part_kinds(key.type)[key.default["kind"]])}
    changed = {name: value for name, value in key.default.items() if name != "kind" and value != defaults[name]}
    return ", ".join([f"`{key.default['kind']}`", *(f"`{name} = {value}`" for name, value in changed.items())])


def _preset_lines() -> Iterator[str]:
    yield from (
        "## Presets of devices",
        "`flops` is the peak by the data sheet times what training is assumed to reach of it.",
    )
    yield from ("", "| preset | flops | memory | watts | link | source |", "|---|---|---|---|---|---|")
    for name, board in PRESETS.items():
        figures = f"{board.flops} | {board.memory} | {board.watts:g} | `{board.link}`"
        yield f"| `{name}` | {figures} | {board.source} |"
    yield from ("", "## Links by name", "", "| link | up | down | latency | overhead |", "|---|---|---|---|---|")
    for name, link in LINKS.items():
        yield f"| `{name}` | {link.up} | {link.down} | {link.latency} | {link.overhead} |"
    yield from ("", "## Built-in fleets", "", "| fleet | devices |", "|---|---|")
    for name, about in built_in_fleets().items():
        yield f"| `{name}` | {_cell(about)} |"


def _recipe_lines() -> Iterator[str]:
    yield from ("# Recipes", "A recipe is a name for a choice of parts; keys of the job override it.")
    yield from ("", "| recipe | what it does | settings | source |", "|---|---|---|---|")
    for name, recipe in CATALOGUE.items():
        settings = ", ".join(f"`{path} = {value}`" for path, value in _flatten(recipe.settings))
        yield f"| `{name}` | {_cell(recipe.summary)} | {_cell(settings)} | {_cell(recipe.source)} |"


def _flatten(settings: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        where = f"{path}.{key}" if path else key
        if isinstance(value, dict) and "kind" in value:
            rest = {inner: each for inner, each in value.items() if inner != "kind"}
            yield where, value["kind"]
            yield from _flatten(rest, where)
        elif isinstance(value, dict):
            yield from _flatten(value, where)
        else:
            yield where, value


def _index_lines() -> Iterator[str]:
    yield from (
        "# Reference",
        "Every key of `job.toml` and `fleet.toml` with its type, range, default and meaning. The pages are generated",
        "from the settings classes by `make reference`; `potluck schema` prints the same as a JSON schema for editors.",
        "",
        *(f"- [{page.title}]({name}.md): {page.introduction}" for name, page in PAGES.items()),
        "- [Recipes](recipes.md): every recipe with the settings that it stands for.",
        "",
        "## Parts",
        "A *part* is a choice with several kinds. Write it by its kind (`barrier = \"all\"`) or as a table",
        "(`barrier = {kind = \"quorum\", share = 0.7}`). A table without `kind` changes the part of the recipe or",
        "the default. A part of your own is named as `package.module:Class` ([extending](../extending.md)).",
        "",
        "## Quantities",
        "A quantity is a number with a unit, or a bare number in the base unit; `unlimited` is allowed everywhere. A",
        "bandwidth needs its unit, since a bare number might be bits.",
        "",
        "| quantity | example | base unit | units |",
        "|---|---|---|---|",
    )  # fmt: skip
    for quantity, name in QUANTITIES.items():
        units = ", ".join(f"`{unit}`" for unit in quantity.units)
        yield f'| {name} | `"{quantity.example}"` | `{quantity.unit}` | {units} |'


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _anchor(heading: str) -> str:
    """As GitHub makes it from a heading."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def main(argv: Sequence[str]) -> int:
    pages = render_pages()
    if list(argv) == ["--check"]:
        stale = [name for name, text in pages.items() if not _is_current(FOLDER / name, text)]
        stale += [path.name for path in sorted(FOLDER.glob("*.md")) if path.name not in pages]
        for name in stale:
            typer.echo(f"docs/reference/{name} is out of date; run: make reference")
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

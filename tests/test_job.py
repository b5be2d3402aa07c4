from __future__ import annotations

import itertools
import tomllib
import typing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck import recipes
from potluck.data import Source, Split
from potluck.errors import SettingError
from potluck.fleet import Fault, Fleet, Trace
from potluck.fleet.fleet_devices import LINKS, PRESETS
from potluck.job import Job, built_in_fleets, dump_job, load_job, make
from potluck.loops.parts.barrier import Barrier
from potluck.loops.parts.batching import Batching
from potluck.loops.parts.lr_scaling import LrScaling
from potluck.loops.parts.model_transfer import ModelTransfer
from potluck.loops.settings import Rounds
from potluck.model.class_skew import SkewCorrection
from potluck.model.codecs import Codec
from potluck.model.local_training import LocalTraining
from potluck.model.lr_schedules import LearningRateSchedule
from potluck.model.optimizers import Optimizer
from potluck.model.submodels.submodel_parts import FilterDropout, Submodel
from potluck.model.update_merging import MergeRule
from potluck.planning.pareto_table import ParetoTable
from potluck.settings import Part, part_kinds
from potluck.worlds.live import handshake_messages

PLAIN: dict[str, Any] = {
    "task": {"model": "mlp", "data": "digits"},
    "fleet": "pi-shelf",
    "stop": {"rounds": 3},
}
# Required options of a kind.
NEEDS: dict[str, dict[str, Any]] = {
    "piecewise": {"at": ["0 s", "1 min"], "levels": [1, 0.5]},
    "steps": {"at": [3, 5]},
    "cosine": {"rounds": 9},
    "folder": {"path": "images"},
    "optimizer": {"name": "torch.optim.RMSprop", "options": {"momentum": 0.9}},
}
# The key path of each family in a job.
PLACES: list[tuple[type[Part], tuple[str, ...]]] = [
    (Barrier, ("rounds", "barrier")),
    (Batching, ("rounds", "batching")),
    (ModelTransfer, ("rounds", "transfer")),
    (Codec, ("rounds", "codec")),
    (LocalTraining, ("rounds", "local")),
    (MergeRule, ("rounds", "merge")),
    (LrScaling, ("rounds", "scaling")),
    (SkewCorrection, ("rounds", "skew")),
    (Submodel, ("rounds", "submodel")),
    (Optimizer, ("rounds", "server")),
    (LearningRateSchedule, ("rounds", "schedule")),
    (LearningRateSchedule, ("rounds", "local_schedule")),
    (Split, ("split",)),
]


def _again(job: Job) -> Job:
    return make(tomllib.loads(dump_job(job)))


def _with(key_path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for step in reversed(key_path):
        value = {step: value}
    return {**PLAIN, **value}


def _shipped(family: type[Part]) -> list[str]:
    """The kinds that come with Potluck; other tests may have declared their own."""
    return [name for name, kind in part_kinds(family).items() if kind.__module__.startswith("potluck.")]


CASES = [(family, key_path, kind) for family, key_path in PLACES for kind in _shipped(family)]


@pytest.mark.parametrize(("family", "key_path", "kind"), CASES, ids=[f"{'.'.join(p)}={k}" for _, p, k in CASES])
def test_every_kind_of_part_is_written_and_read(family: type[Part], key_path: tuple[str, ...], kind: str) -> None:
    job = make(_with(key_path, {"kind": kind, **NEEDS.get(kind, {})}))
    value: Any = job
    for step in key_path:
        value = getattr(value, step)
    assert isinstance(value, part_kinds(family)[kind])
    assert _again(job) == job


def test_every_part_of_a_round_is_covered_above() -> None:
    hints = typing.get_type_hints(Rounds)
    families = {hint for hint in hints.values() if isinstance(hint, type) and issubclass(hint, Part)}
    assert families <= {family for family, _ in PLACES}


@pytest.mark.parametrize("kind", _shipped(Trace))
def test_every_kind_of_trace_is_written_and_read(kind: str, tmp_path: Path) -> None:
    (tmp_path / "levels.csv").write_text("s,level\n0,1\n30,0.5\n")
    trace = {"kind": kind, **({"file": "levels.csv"} if kind == "csv" else NEEDS.get(kind, {}))}
    group = {"preset": "pi4", "speed": trace, "available": trace, "link": {"quality": trace}}
    job = make({**PLAIN, "fleet": {"devices": [group]}}, folder=tmp_path)
    assert _again(job) == job


@pytest.mark.parametrize("kind", _shipped(Fault))
@pytest.mark.parametrize("when", [{"at": "3 s"}, {"every": "2 min"}])
def test_every_kind_of_fault_is_written_and_read(kind: str, when: dict[str, str]) -> None:
    fault = {"kind": kind, **when, **({"lasting": "1 s"} if kind == "hang" else {})}
    job = make({**PLAIN, "fleet": {"devices": [{"preset": "pi4", "count": 2}], "faults": [fault]}})
    assert isinstance(job.fleet.faults[0], part_kinds(Fault)[kind])
    assert _again(job) == job


@pytest.mark.parametrize("kind", _shipped(Source))
def test_every_data_set_is_written_and_read(kind: str, tmp_path: Path) -> None:
    options = {"path": str(tmp_path)} if kind == "folder" else {}
    job = make({**PLAIN, "task": {"model": "mlp", "data": {"kind": kind, **options}}})
    assert _again(job) == job


@pytest.mark.parametrize(("recipe", "fleet"), list(itertools.product(recipes.CATALOGUE, built_in_fleets())))
def test_every_recipe_on_every_fleet_is_written_and_read(recipe: str, fleet: str) -> None:
    job = make({**PLAIN, "recipe": recipe, "fleet": fleet})
    assert _again(job) == job
    assert job.fleet.members


GROUPS = st.fixed_dictionaries(
    {"preset": st.sampled_from(sorted(PRESETS))},
    optional={
        "count": st.integers(1, 5),
        "flops": st.floats(1, 1e15),
        "memory": st.integers(0, 2**50),
        "link": st.one_of(
            st.sampled_from(sorted(LINKS)),
            st.fixed_dictionaries(
                {"up": st.floats(1, 1e10).map("{} B/s".format), "latency": st.floats(0, 10), "loss": st.floats(0, 0.99)}
            ),
        ),
    },
)
JOBS = st.fixed_dictionaries(
    {"fleet": st.builds(lambda group: {"devices": [group]}, GROUPS)},
    optional={
        "name": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        "seed": st.integers(0, 2**63 - 1),
        "stop": st.fixed_dictionaries({"time": st.floats(1e-3, 1e9), "bytes": st.floats(1, 1e15)}),
        "evaluate": st.integers(0, 99),
        "timing_only": st.booleans(),
        "recipe": st.sampled_from(sorted(recipes.CATALOGUE)),
    },
)


@settings(deadline=None)
@given(tables=JOBS)
def test_any_job_is_written_and_read(tables: dict[str, Any]) -> None:
    job = make({**PLAIN, **tables})
    assert _again(job) == job
    assert dump_job(_again(job)) == dump_job(job)


def test_the_job_overrides_the_recipe_and_overrides_override_the_job() -> None:
    recipe = {**PLAIN, "recipe": "fedavg"}
    assert make(recipe).rounds.local.lr == 0.05  # type: ignore[attr-defined]
    job_tables = {**recipe, "rounds": {"local": {"lr": 0.5}, "batching": {"size": 7}}}
    assert make(job_tables).rounds.local.lr == 0.5  # type: ignore[attr-defined]
    over = make(job_tables, ["rounds.local.lr=0.25", "rounds.least=2"])
    assert over.rounds.local.lr == 0.25  # type: ignore[attr-defined]
    assert over.rounds.batching.batch_size_for(100) == 7
    assert over.rounds.least == 2


def test_a_part_of_another_kind_inherits_nothing_from_the_recipe() -> None:
    job = make({**PLAIN, "recipe": "sync-sgd", "rounds": {"server": {"kind": "adam"}}})
    assert job.rounds.server == part_kinds(Optimizer)["adam"]()


def test_a_resolved_job_does_not_change_with_its_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    job = make({**PLAIN, "recipe": "fedavg"})
    changed = recipes.Recipe("", "", {"rounds": {"local": {"kind": "sgd", "lr": 99.0}, "barrier": "quorum"}})
    monkeypatch.setattr(recipes, "CATALOGUE", {"fedavg": changed})
    assert _again(job) == job
    monkeypatch.setattr(recipes, "CATALOGUE", {})
    assert make(tomllib.loads(dump_job(job)), resolved=True) == job


def test_overrides_can_set_options_of_a_part_given_by_name() -> None:
    job = make({**PLAIN, "rounds": {"barrier": "quorum"}}, ["rounds.barrier.share=0.5"])
    assert job.rounds.barrier == part_kinds(Barrier)["quorum"](share=0.5)


def test_a_later_override_takes_precedence() -> None:
    assert make(PLAIN, ["seed=1", "seed=2"]).seed == 2


def test_an_override_may_name_a_fleet_or_change_one_of_its_keys() -> None:
    assert len(make(PLAIN, ["fleet=kitchen-table"]).fleet.members) == 8
    assert make(PLAIN, ["fleet.lease=7 s"]).fleet.lease == 7.0
    assert make(PLAIN, ["fleet.coordinator.link=lan"]).fleet.coordinator.resolved_link == LINKS["lan"]


@pytest.mark.xfail(strict=True, reason="merge takes any text for the kind of a part: `unknown key link.kind`")
def test_the_error_for_an_override_of_a_named_link_does_not_mention_a_kind() -> None:
    tables = {**PLAIN, "fleet": {"devices": [{"preset": "pi4"}], "coordinator": {"link": "lan"}}}
    with pytest.raises(SettingError) as excinfo:
        make(tables, ["fleet.coordinator.link.up=1 Mbit/s"])
    assert "kind" not in str(excinfo.value)


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "fleets"
    inner.mkdir()
    (inner / "slow.csv").write_text("0,0.5\n")
    (inner / "mine.toml").write_text('[[devices]]\npreset = "pi4"\nspeed = {kind = "csv", file = "slow.csv"}\n')
    (tmp_path / "job.toml").write_text(
        'fleet = "fleets/mine.toml"\n[task]\nmodel = "mlp"\ndata = "digits"\n[stop]\nrounds = 1\n'
    )
    monkeypatch.chdir("/")
    job = load_job(tmp_path / "job.toml")
    assert job.fleet.devices[0].speed.file == str(inner / "slow.csv")  # type: ignore[attr-defined]
    (inner / "slow.csv").unlink()
    assert _again(job) == job, "what was read travels with the job"


def test_paths_in_overrides_are_relative_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user in another folder names files as the shell completes them."""
    beside, current = tmp_path / "job", tmp_path / "here"
    for directory, macs in ((beside, 10), (current, 20)):
        directory.mkdir()
        ParetoTable.from_trials("net", ["conv1"], 50, [(macs, 1.0, [0.5])]).save(directory / "table.json")
        (directory / "levels.csv").write_text("0,1\n")
        trace = '{kind = "csv", file = "levels.csv"}'
        (directory / "fleet.toml").write_text(f'[[devices]]\npreset = "pi4"\ncount = {macs}\nspeed = {trace}\n')
    (beside / "job.toml").write_text(
        'fleet = "fleet.toml"\nrecipe = "distreal"\nrounds.submodel.table = "table.json"\n'
        'task = {model = "mlp", data = "digits"}\nstop = {rounds = 1}\n'
    )
    monkeypatch.chdir(current)
    job = load_job(beside / "job.toml")
    assert (_cheapest(job), len(job.fleet.members)) == (10, 10)
    assert job.fleet.devices[0].speed.file == str(beside / "levels.csv")  # type: ignore[attr-defined]
    job = load_job(beside / "job.toml", ["rounds.submodel.table=table.json", "fleet=fleet.toml"])
    assert (_cheapest(job), len(job.fleet.members)) == (20, 20)
    assert job.fleet.devices[0].speed.file == str(current / "levels.csv")  # type: ignore[attr-defined]
    traced = load_job(beside / "job.toml", ['fleet.devices=[{preset="pi4", speed={kind="csv", file="levels.csv"}}]'])
    assert traced.fleet.devices[0].speed.file == str(current / "levels.csv")  # type: ignore[attr-defined]
    without = load_job(beside / "job.toml", ["rounds.submodel.table="])
    assert without.rounds.submodel.table is None  # type: ignore[attr-defined]


def _cheapest(job: Job) -> int:
    assert isinstance(job.rounds.submodel, FilterDropout)
    assert job.rounds.submodel.table is not None
    return job.rounds.submodel.table.entries[0].macs


def test_an_explored_table_is_embedded_in_the_job(tmp_path: Path) -> None:
    """A device has only the job's text; the table has the largest size and its file is deleted."""
    rates = np.random.default_rng(0).random((60, 150))
    measurements = [(index + 1, float(index) / 7, [float(rate) for rate in row]) for index, row in enumerate(rates)]
    table = ParetoTable.from_trials("net", [f"features.{index}.conv" for index in range(150)], 100, measurements)
    table.save(tmp_path / "table.json")
    job = make({**PLAIN, "recipe": "distreal"}, [f"rounds.submodel.table={tmp_path / 'table.json'}"])
    (tmp_path / "table.json").unlink()
    welcome = handshake_messages.JoinAccepted(
        run="r", era="e", name="n", incarnation=0, job=dump_job(job), digest="", model="", seed=0, lease=5.0,
        limit_bytes=1,
    )  # fmt: skip
    received = handshake_messages.decode_join_answer(handshake_messages.encode_handshake(welcome))
    assert isinstance(received, handshake_messages.JoinAccepted)
    parsed = make(tomllib.loads(received.job))
    assert parsed == job
    assert parsed.rounds.submodel.table == table  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read the table .*none.json: No such file or directory; create it with `potluck explore`"),
        ('{"model": 3}', "is not a table of `potluck explore`"),
        ('{"model": "m", "sets": ["a"], "baseline_macs": 1, "entries": []}', "at least one entry"),
    ],
)
def test_an_unreadable_table_is_named_by_its_key(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "none.json").write_text(content)
    submodel = {"kind": "filter-dropout", "table": "none.json"}
    with pytest.raises(SettingError, match=message) as excinfo:
        make({**PLAIN, "rounds": {"submodel": submodel}}, folder=tmp_path)
    assert excinfo.value.path == "rounds.submodel.table"
    assert "\n" not in str(excinfo.value)


def test_a_resolved_job_is_self_contained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is saved with a run in another folder; the original names its trace by a relative path."""
    (tmp_path / "levels.csv").write_text("0,1\n")
    monkeypatch.chdir(tmp_path)
    fleet = {"devices": [{"preset": "pi4", "link": {"quality": {"kind": "csv", "file": "levels.csv"}}}]}
    job = make({**PLAIN, "fleet": fleet})
    run = tmp_path / "runs" / "1"
    run.mkdir(parents=True)
    (run / "job.toml").write_text(dump_job(job), encoding="utf-8")
    monkeypatch.chdir("/")
    assert load_job(run / "job.toml") == job


@pytest.mark.parametrize(
    ("tables", "overrides", "path", "message"),
    [
        ({"fleet": "no-such"}, [], "fleet", "neither a .toml file nor one of kitchen-table, pi-shelf"),
        ({"fleet": "no-such.toml"}, [], "fleet", "cannot read"),
        ({"fleet": 3}, [], "fleet", "expected a table"),
        ({"fleet": {"devices": []}}, [], "fleet", "at least one device"),
        ({"fleet": {"devices": [{"preset": "pi9"}]}}, [], "fleet.devices[0]", "'pi9' is not known"),
        ({"recipe": "fedavgg"}, [], "recipe", "'fedavgg' is not known; did you mean 'fedavg'?"),
        ({"recipe": "zzz"}, [], "recipe", "'zzz' is not known; choose from sync-sgd"),
        ({}, ["recipe=fedavgg"], "recipe", "did you mean 'fedavg'?"),
        ({"recipe": 3}, [], "recipe", "expected a name"),
        ({"stop": {}}, [], "stop", "at least one budget"),
        ({"stop": {"accuracy": 0.9}}, [], "stop", "may never be reached"),
        ({"stop": {"rounds": 0}}, [], "stop.rounds", ">= 1"),
        ({"stop": {"accuracy": 95, "rounds": 1}}, [], "stop.accuracy", "<= 1"),
        ({"task": {"model": "mlpp", "data": "digits"}}, [], "task.model", "mlp"),
        ({"task": {"model": "mlp", "data": "digit"}}, [], "task.data", "did you mean 'digits'?"),
        ({"rounds": {"local": {"momentum": 1.0}}}, [], "rounds.local.momentum", "< 1"),
        ({"rounds": {"server": {"nesterov": True}}}, [], "rounds.server", "needs a `momentum`"),
        ({}, ["rounds.batch=3"], "rounds.batch", "did you mean 'batching'?"),
        ({}, ["seed=-1"], "seed", ">= 0"),
        ({}, ["name=3"], "name", "expected `str`"),
    ],
)
def test_errors_in_a_job_name_their_key(tables: dict[str, Any], overrides: list[str], path: str, message: str) -> None:
    with pytest.raises(SettingError) as excinfo:
        make({**PLAIN, **tables}, overrides)
    assert excinfo.value.path.startswith(path), "the table, or the key in it"
    assert message in excinfo.value.problem


@pytest.mark.parametrize("key", ["task", "fleet", "stop"])
def test_missing_keys_of_a_job_are_named(key: str) -> None:
    with pytest.raises(SettingError, match=f"{key}: this key is missing"):
        make({name: table for name, table in PLAIN.items() if name != key})


@pytest.mark.parametrize("content", [b"a = ", b"\xff\xfe", b"[[task]]\n[task]\n"])
def test_a_file_that_is_not_toml_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    with pytest.raises(SettingError, match=r"job\.toml is not TOML") as excinfo:
        load_job(path)
    assert "\n" not in str(excinfo.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.toml"):
        with pytest.raises(SettingError, match="cannot read"):
            load_job(path)


def test_making_a_job_does_not_modify_its_input() -> None:
    tables = {**PLAIN, "rounds": {"local": {"lr": 0.5}}}
    before = msgspec.json.encode(tables)
    make(tables, ["rounds.local.lr=1.5", "fleet.lease=1 s"])
    assert msgspec.json.encode(tables) == before
    assert recipes.CATALOGUE["fedavg"].settings["rounds"]["local"]["lr"] == 0.05


def test_every_built_in_fleet_has_a_description() -> None:
    assert set(built_in_fleets()) >= {"kitchen-table", "pi-shelf"}
    assert all(len(about) > 10 and not about.startswith("[") for about in built_in_fleets().values())


def test_a_title_is_the_name_or_the_task() -> None:
    assert make({**PLAIN, "name": "mine"}).title == "mine"
    assert make(PLAIN).title == "mlp on digits"
    assert make({**PLAIN, "task": "pkg.mod:fn"}).title == "pkg.mod:fn"


def test_a_job_of_python_objects_is_equal_to_the_one_that_was_read() -> None:
    read = make(PLAIN)
    built = Job(
        task=read.task,
        fleet=Fleet(devices=read.fleet.devices),
        stop=read.stop,
        rounds=read.rounds,
    )
    assert built == read


def test_the_defaults_of_the_constructor_are_those_of_its_recipe() -> None:
    read = make(PLAIN)
    assert Job(task=read.task, fleet=read.fleet, stop=read.stop) == read


@pytest.mark.parametrize(
    ("recipe", "message"),
    [("dynacomm", r"use potluck\.make\(\{'recipe': 'dynacomm'"), ("dynacom", "'dynacom' is not known; did you mean")],
)
def test_the_constructor_applies_no_recipe_and_says_so(recipe: str, message: str) -> None:
    read = make(PLAIN)
    with pytest.raises(SettingError, match=message) as excinfo:
        Job(task=read.task, fleet=read.fleet, stop=read.stop, recipe=recipe)
    assert excinfo.value.path == "recipe"
    with pytest.raises(SettingError):
        msgspec.structs.replace(read, recipe=recipe)


def test_a_job_with_its_recipe_applied_can_be_varied() -> None:
    job = make({**PLAIN, "recipe": "dynacomm"})
    varied = msgspec.structs.replace(job, seed=3)
    assert (varied.recipe, varied.rounds, varied.seed) == ("dynacomm", job.rounds, 3)


def test_a_resolved_job_may_not_change_its_recipe() -> None:
    tables = tomllib.loads(dump_job(make(PLAIN)))
    assert make(tables, ["seed=1", "recipe=fedavg"], resolved=True).seed == 1
    with pytest.raises(SettingError, match=r"a run keeps its recipe \(fedavg\)"):
        make(tables, ["recipe=fedbuff"], resolved=True)

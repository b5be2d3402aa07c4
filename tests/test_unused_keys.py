"""Keys without effect: refused where a user gives them, accepted from recipes, left out of saved jobs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import potluck
from potluck import recipes
from potluck.errors import SettingError
from potluck.job import Job, check_constructed_job, dump_job, load_job, make
from potluck.loops.pipeline.settings import Adaptation, Pipeline
from potluck.loops.settings import Rounds
from potluck.model.codecs import Fp16Codec
from potluck.settings import Settings, check_given_keys, decode_settings, encode_settings, find_unused_keys

PLAIN: dict[str, Any] = {"task": {"model": "mlp", "data": "drawn-digits"}, "fleet": "pi-shelf", "stop": {"rounds": 3}}
PIPELINE: dict[str, Any] = {**PLAIN, "recipe": "ftpipehd"}


class Oven(Settings, frozen=True, kw_only=True):
    """A table whose `minutes` matter while it is on."""

    on: bool = True
    minutes: int = 30

    def unused_keys(self) -> Mapping[str, str]:
        return {} if self.on else {"minutes": "while `on` is false"}


class Kitchen(Settings, frozen=True, kw_only=True):
    """A table of tables, one of which it can switch off as well."""

    ovens: tuple[Oven, ...] = ()
    spare: Oven = Oven()
    busy: bool = True

    def unused_keys(self) -> Mapping[str, str]:
        return {} if self.busy else {"spare.minutes": "while `busy` is false"}


COLD = {"ovens": [{"minutes": 5}, {"on": False, "minutes": 5}], "spare": {"minutes": 3}, "busy": False}


def test_unused_keys_are_found_by_their_paths() -> None:
    kitchen = decode_settings(COLD, Kitchen)
    assert find_unused_keys(kitchen) == {
        "ovens[1].minutes": "while `on` is false",
        "spare.minutes": "while `busy` is false",
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (COLD, r"ovens\[1\].minutes: has no effect while `on` is false; remove it$"),
        ({"spare": {"minutes": 3}}, "spare.minutes: has no effect while `busy` is false; remove it$"),
        ({"spare": Oven(minutes=3)}, "spare.minutes: has no effect"),
        (Kitchen(spare=Oven(minutes=3)), "spare.minutes: has no effect"),
    ],
)
def test_what_was_given_without_effect_is_refused(given: object, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        check_given_keys(decode_settings(COLD, Kitchen), given)


@pytest.mark.parametrize("given", [{}, {"ovens": [{"minutes": 5}, {"on": False}]}, {"spare": Oven()}, {"spare": 3}])
def test_what_was_not_given_is_not_refused(given: object) -> None:
    check_given_keys(decode_settings(COLD, Kitchen), given)


def test_keys_are_left_out_by_their_paths() -> None:
    kitchen = decode_settings(COLD, Kitchen)
    assert encode_settings(kitchen, find_unused_keys(kitchen)) == {
        "ovens": [{"on": True, "minutes": 5}, {"on": False}], "spare": {"on": True}, "busy": False,
    }  # fmt: skip
    assert encode_settings(kitchen)["ovens"][1] == {"on": False, "minutes": 5}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"rounds": {"codec": "fp16", "least": 2}}, r"rounds: .* which has no rounds; remove it \(codec, least\)$"),
        ({"rounds": {}}, "rounds: has no effect in a pipeline, which has no rounds; remove it$"),
        ({"split": "dirichlet"}, "split: has no effect in a pipeline"),
        ({"stream": {"late": "3 s"}}, "stream: has no effect in a pipeline"),
        ({"samples": 40}, "samples: has no effect in a pipeline"),
        ({"pipeline": {"adaptation": {"every": 0, "first": 3}}}, "pipeline.adaptation.first: has no effect while"),
        ({"pipeline": {"recovery": {"factor": 3.0}}}, r"pipeline\.recovery\.factor: has no effect unless notice ="),
    ],
)
def test_a_pipeline_refuses_what_it_does_not_use(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message) as excinfo:
        make({**PIPELINE, **tables})
    assert "\n" not in str(excinfo.value)


def test_an_override_is_refused_like_a_key_of_the_file() -> None:
    with pytest.raises(SettingError, match=r"rounds: .*remove it \(codec\)"):
        make(PIPELINE, ["rounds.codec=int8"])
    with pytest.raises(SettingError, match=r"rounds: .*remove it \(batching\)"):
        make({**PLAIN, "rounds": {"batching": {"size": 8}}}, ["recipe=gpipe"])


@pytest.mark.parametrize("recipe", recipes.CATALOGUE)
def test_a_saved_job_has_no_key_without_effect_and_is_read_as_a_job_too(recipe: str) -> None:
    saved = dump_job(make({**PLAIN, "recipe": recipe}))
    assert dump_job(make(tomllib.loads(saved))) == dump_job(make(tomllib.loads(saved), resolved=True)) == saved


def test_a_saved_pipeline_has_no_rounds() -> None:
    tables = tomllib.loads(dump_job(make(PIPELINE)))
    assert not {"rounds", "split", "stream", "samples"} & set(tables)


def test_a_saved_job_of_0_1_is_read_and_its_overrides_must_act() -> None:
    path = Path(__file__).parent / "frozen" / "runs_0_1" / "pipedream" / "job.toml"
    tables = tomllib.loads(path.read_text())
    assert "rounds" in tables, "0.1 saved them in pipelines too"
    assert tables["fleet"]["coordinator"]["flops"], "it had no effect and is no key any more"
    assert load_job(path, ["stop.rounds=99"], resolved=True).stop.rounds == 99
    for override, message in (("rounds.codec=int8", "no rounds"), ("fleet.coordinator.flops=1", "unknown key")):
        with pytest.raises(SettingError, match=message):
            load_job(path, [override], resolved=True)


def test_a_job_of_python_objects_is_checked_when_it_is_run() -> None:
    made = make(PLAIN)
    job = Job(task=made.task, fleet=made.fleet, stop=made.stop, pipeline=Pipeline())
    check_constructed_job(job)
    for changed, message in (
        (replace(job, rounds=Rounds(codec=Fp16Codec())), "rounds: has no effect"),
        (replace(job, pipeline=Pipeline(adaptation=Adaptation(every=0, first=3))), "adaptation.first: has no effect"),
    ):
        with pytest.raises(SettingError, match=message):
            potluck.simulate(changed)
    check_constructed_job(make(PIPELINE))


def test_a_plan_uses_the_samples_that_a_run_does_not_need() -> None:
    tables = {**PLAIN, "samples": 64}
    with pytest.raises(SettingError, match="samples: has no effect without timing_only = true"):
        make(tables)
    plans = [potluck.plan(given).to_dict() for given in (tables, {**PLAIN, "samples": 640})]
    assert plans[0] != plans[1]
    made = make(PLAIN)
    job = Job(task=made.task, fleet=made.fleet, stop=made.stop, samples=64)
    assert potluck.plan(job).to_dict()["devices"] == plans[0]["devices"]

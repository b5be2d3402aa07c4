"""Promise 7: a setting acts or is refused.

Every key of every settings class, at every place of a job where it may stand, has a case: a small job, and another
value for the key. With it the run (or the data, the model, the live stream) must come out differently, or the job must
be refused in one line. A new key without a case fails `test_every_key_has_a_case` by its name; its case goes into the
module of its room, beside this one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from potluck.errors import UserError
from tests.every_setting import (
    data_cases,
    fleet_cases,
    job_cases,
    pipeline_cases,
    rounds_cases,
    stream_cases,
    submodel_cases,
)
from tests.every_setting.outcomes import run_outcome, saved_outcome
from tests.every_setting.setting_case import SettingCase
from tests.every_setting.setting_places import key_place, walk_keys
from tests.every_setting.single_checks import CHECKS

ROOMS = (job_cases, data_cases, fleet_cases, rounds_cases, submodel_cases, stream_cases, pipeline_cases)
CASES: list[SettingCase] = [case for room in ROOMS for case in room.CASES]

PARAMETERS = [
    pytest.param(case, id=f"{index}-{case.name}", marks=() if case.runs_by_default else pytest.mark.long)
    for index, case in enumerate(CASES)
]

_outcomes: dict[str, Any] = {}  # of the unchanged jobs


def _outcome(case: SettingCase) -> Any:
    key = f"{case.measure.__name__} {json.dumps(case.job, sort_keys=True)}"
    if key not in _outcomes:
        _outcomes[key] = case.measure(case.job)
    return _outcomes[key]


@pytest.fixture(scope="module", autouse=True)
def data_files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        data_cases.write_data_files(tmp_path_factory.mktemp("data"), patch)
        yield


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", PARAMETERS)
def test_another_value_acts_or_is_refused(case: SettingCase, tmp_path: Path) -> None:
    job = case.changed_job()
    if case.is_refused:
        with pytest.raises(UserError) as excinfo:
            case.measure(job)
        assert case.value.words in str(excinfo.value)
        assert len(str(excinfo.value).splitlines()) == 1
        return
    changed = case.measure(job)
    if changed == _outcome(case):
        assert case.measure is run_outcome, "nothing changed"
        saved = [saved_outcome(one, tmp_path / name) for one, name in ((job, "changed"), (case.job, "unchanged"))]
        assert saved[0] != saved[1], "neither the result nor the run's folder changed"


@pytest.mark.parametrize("place", CHECKS)
def test_a_key_that_no_small_run_shows_acts(place: str, tmp_path: Path) -> None:
    CHECKS[place](tmp_path)


def test_every_key_has_a_case() -> None:
    covered = {key_place(case.path, case.owner, case.key) for case in CASES} | set(CHECKS)
    places = set(walk_keys())
    missing, unknown = sorted(places - covered), sorted(covered - places)
    assert not missing, f"no case shows that these keys act or are refused: {', '.join(missing)}"
    assert not unknown, f"there are cases for keys that no job has: {', '.join(unknown)}"

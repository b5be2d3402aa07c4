"""A damaged file beside a live run's model costs a warning, never the run; nobody is asked to delete anything."""

from __future__ import annotations

import shutil
import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import potluck
from potluck.atomic_file import UNUSABLE
from potluck.errors import DamagedFileError, PotluckWarning, RunError
from potluck.run import live_run
from potluck.run.folder_mending import mend_live_folder
from potluck.run.leadership import LeadershipRecord, load_leadership_record, save_leadership_record
from potluck.run.live_options import KeptOptions, load_options
from potluck.run.live_run import prepare_live_job
from potluck.run.live_status import is_live_run, read_live_status
from potluck.run.promotion import promote
from potluck.run.run_lock import lock_run
from potluck.run.run_opening import load_run_job
from potluck.run.standby_folder import StandbyFolder
from potluck.worlds.live.security.join_tokens import load_run_secret
from tests.live.live_scenarios import SMALL
from tests.run.test_promotion import StoppingObserver, stopped_options

FILES = ["options.json", "live.json", "leadership.json", "join.secret", "admitted.json"]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A live run that was stopped in its seventh term."""
    run = tmp_path_factory.mktemp("intact") / "run"
    options = replace(stopped_options(), token_each=True)
    potluck.serve(SMALL, folder=run, options=options, observer=StoppingObserver())
    save_leadership_record(run, LeadershipRecord(run="its name", term=7, coordinator="this copy"))
    (run / "admitted.json").write_text('{"d-1": "fingerprint"}')
    _resume(run)
    return run


@pytest.fixture
def run(intact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact, tmp_path / "run"))


def _resume(run: Path) -> None:
    potluck.resume(run, options=potluck.ResumeOptions(wait_s=0.1, observer=StoppingObserver()))


def _resume_with_one_warning(run: Path) -> str:
    with pytest.warns(PotluckWarning) as caught:
        _resume(run)
    (text,) = [str(warning.message) for warning in caught]
    assert "\n" not in text
    return text


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[3]"])
@pytest.mark.parametrize("name", FILES)
def test_a_run_with_a_damaged_file_is_resumed_with_one_warning(run: Path, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    assert f"{run / name} is damaged (" in _resume_with_one_warning(run)
    assert (run / f"{name}{UNUSABLE}").read_bytes() == content
    assert is_live_run(run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _resume(run)


def test_the_run_and_its_term_are_known_from_the_status(run: Path) -> None:
    (run / "leadership.json").write_bytes(b"")
    _resume_with_one_warning(run)
    assert load_leadership_record(run) == LeadershipRecord(run="its name", term=7, coordinator="this copy")


def test_a_term_that_nothing_says_is_above_all_others(run: Path) -> None:
    for name in ("leadership.json", "live.json"):
        (run / name).write_bytes(b"")
    with pytest.warns(PotluckWarning):
        mend_live_folder(run)
    assert load_leadership_record(run).run == "run"
    assert load_leadership_record(run).term > 10**9


def test_a_new_secret_replaces_a_damaged_one(run: Path) -> None:
    before = load_run_secret(run)
    (run / "join.secret").write_bytes(before[:10])
    assert "give the devices the new tokens" in _resume_with_one_warning(run)
    assert len(load_run_secret(run)) == 32
    assert load_run_secret(run) != before


def test_default_options_listen_where_the_run_did(run: Path) -> None:
    status = read_live_status(run)
    assert status is not None
    (run / "options.json").write_bytes(b"")
    assert "pass those that the run was started with, such as --token-each" in _resume_with_one_warning(run)
    options = load_options(run)
    assert options is not None
    assert options.serve is not None
    assert f"tcp/{options.serve.listen}" == status.listen
    assert not options.serve.token_each


def test_without_options_and_status_only_this_machine_can_join(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("options.json", "live.json"):
        (run / name).write_bytes(b"")
    with pytest.warns(PotluckWarning):
        mend_live_folder(run)
    served: list[KeptOptions] = []
    monkeypatch.setattr(live_run, "serve_prepared", lambda prepared, store, kept, *others: served.append(kept))
    _resume(run)
    assert served[0].serve is not None
    assert (served[0].serve.listen, served[0].serve.insecure) == ("", False)


def test_a_damaged_copy_can_be_promoted(run: Path) -> None:
    (run / "leadership.json").write_bytes(b"")
    with pytest.warns(PotluckWarning, match="leadership.json is damaged"):
        promote(run)
    assert load_leadership_record(run).promoted


def test_the_folder_of_a_living_owner_is_left_alone(run: Path) -> None:
    (run / "options.json").write_bytes(b"")
    with lock_run(run), pytest.raises(RunError, match="held by process"):
        _resume(run)
    assert (run / "options.json").exists()


@pytest.mark.parametrize(
    "content", [b"", b"recipe = ", b"\xff", b'recipe = "fedavg"\n', b'task = "drawn"\nfleet = 3\n']
)
def test_a_damaged_job_is_named_with_its_file(run: Path, content: bytes) -> None:
    (run / "job.toml").write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"/run/job\.toml is damaged \(.*\); put it back") as refused:
        _resume(run)
    assert "\n" not in str(refused.value)
    assert str(refused.value).count("job.toml") == 1


def test_a_standby_replaces_a_damaged_job_by_its_own(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = (run / "job.toml").read_bytes()
    (run / "job.toml").write_bytes(before[:100])
    with closing(StandbyFolder(prepare_live_job(SMALL, None, None), KeptOptions(serve=stopped_options()), run)) as copy:
        assert copy.open_existing("tcp/127.0.0.1:7447") is not None
    assert (run / "job.toml").read_bytes() == before
    assert "job.toml is damaged" in caplog.text
    assert (run / f"job.toml{UNUSABLE}").read_bytes() == before[:100]


def test_what_is_wrong_with_an_override_is_not_the_file(run: Path) -> None:
    with pytest.raises(potluck.errors.SettingError, match=r"^rounds\.epochs"):
        load_run_job(run, ["rounds.epochs=3"])

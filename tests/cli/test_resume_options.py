"""A live run is resumed with every option that it was started with, unless the command line says otherwise."""

from __future__ import annotations

import contextlib
import inspect
import stat
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from potluck.cli.run_command import resume_command
from potluck.cli.serve_command import lab_command, serve_command
from potluck.errors import UserError
from potluck.job import dump_job, make
from potluck.run import lab, live_run
from potluck.run.etcd_leadership import EtcdElection
from potluck.run.leadership import SoleLeadership
from potluck.run.live_options import KeptOptions, load_options, save_options
from potluck.run.live_run import LiveRun
from potluck.run.live_status import LiveStatus, write_live_status
from tests.cli.calling import Shell
from tests.live.live_scenarios import SMALL
from tests.worlds.live.fleet_folder import make_authority

IN_THE_JOB = {"job", "settings", "seed"}  # saved with the run as job.toml
OF_A_STANDBY = {"standby", "connect", "token"}  # whom it follows; a run that is resumed leads
OF_THE_CALL = {"out", "as_json", "quiet"}  # the folder itself, and what is printed


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[KeptOptions]:
    """The options of each run that is led; it ends at once."""
    options: list[KeptOptions] = []

    def lead(prepared: object, run: LiveRun, observer: object) -> None:
        assert run.store.folder is not None
        options.append(run.options)
        save_options(run.store.folder, run.options)
        write_live_status(run.store.folder, LiveStatus(pid=1, born=0, listen=run.locator, lab=run.devices is not None))
        raise UserError("far enough")

    monkeypatch.setattr(live_run, "lead_live_run", lead)
    monkeypatch.setattr(live_run, "open_leadership", lambda record, *_: SoleLeadership(record.term))  # without etcd
    monkeypatch.setattr(EtcdElection, "current_leader", lambda election: None)
    monkeypatch.setattr(lab, "lead_live_run", lead)
    monkeypatch.setattr(lab, "LabDevices", lambda *arguments, **options: contextlib.nullcontext("no processes"))
    return options


def _kept_parameters(command: Callable[..., None]) -> dict[str, Any]:
    """The options of a command that a resumed run must keep, with their types."""
    hints = typing.get_type_hints(command)
    names = inspect.signature(command).parameters.keys() - IN_THE_JOB - OF_A_STANDBY - OF_THE_CALL
    return {name: hints[name] for name in sorted(names)}


def _certs(folder: Path) -> Path:
    make_authority(folder, *(f"d-{index}" for index in range(4)))
    return folder


def _arguments(parameters: dict[str, Any], folder: Path, *, changed: bool) -> list[str]:
    """A value for each option that is not its default, and with `changed` not the first one either."""
    folder.mkdir()
    arguments: list[str] = []
    for name, kind in parameters.items():
        option = "--" + name.replace("_", "-")
        if kind is bool:
            arguments.append(option.replace("--", "--no-", 1) if changed else option)
        elif kind in (float, float | None):
            arguments += [option, "8.5" if changed else "7.5"]
        elif kind is str:
            scheme = "http://" if name == "etcd" else ""
            arguments += [option, f"{scheme}127.0.0.1:{8002 if changed else 8001}"]
        else:
            assert kind == Path | None, f"choose a value for {option}"
            (folder / name).mkdir()
            arguments += [option, str(_certs(folder / name) if name == "certs" else folder / name)]
    return arguments


@pytest.mark.parametrize("command", [serve_command, lab_command])
@pytest.mark.filterwarnings("default::potluck.errors.PotluckWarning")
def test_every_option_is_kept_and_can_be_changed(
    tmp_path: Path, shell: Shell, started: list[KeptOptions], command: Callable[..., None]
) -> None:
    parameters = _kept_parameters(command)
    assert parameters.keys() <= inspect.signature(resume_command).parameters.keys(), "resume must take it, too"
    (tmp_path / "job.toml").write_text(dump_job(make(SMALL)))
    run, name = tmp_path / "run", command.__name__.removesuffix("_command")
    given = _arguments(parameters, tmp_path / "first", changed=False)
    assert "far enough" in shell(name, tmp_path / "job.toml", "--out", run, *given).err
    assert "far enough" in shell("resume", run).err
    assert started[1] == started[0]
    changes = _arguments(parameters, tmp_path / "second", changed=True)
    assert "far enough" in shell("resume", run, *changes).err
    assert "far enough" in shell("resume", run).err
    assert started[3] == started[2] == load_options(run)
    before, after = (_flattened(started[index]) for index in (0, 2))
    differing = {key for key in before if before[key] != after[key]}
    assert len(differing) == len(parameters), f"all of {', '.join(parameters)}: only {differing} changed"


def _flattened(options: KeptOptions) -> dict[str, Any]:
    part = options.serve or options.lab
    return {"data": options.data, **vars(part)}


def test_the_file_is_private_and_its_paths_are_absolute(
    tmp_path: Path, shell: Shell, started: list[KeptOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(dump_job(make(SMALL)))
    _certs(tmp_path / "certs")
    (tmp_path / "data").mkdir()
    shell("serve", "job.toml", "--certs", "certs", "--data", "data", "--out", "run")
    kept = load_options(tmp_path / "run")
    assert kept is not None
    assert kept.serve is not None
    assert (kept.serve.certs, kept.data) == (tmp_path / "certs", tmp_path / "data")
    assert stat.S_IMODE((tmp_path / "run" / "options.json").stat().st_mode) == 0o600


def test_options_of_live_runs_are_refused_for_others(tmp_path: Path, shell: Shell, started: list[KeptOptions]) -> None:
    (tmp_path / "job.toml").write_text(dump_job(make({**SMALL, "stop": {"rounds": 1}})))
    assert shell("run", tmp_path / "job.toml", "--out", tmp_path / "simulated", "--quiet").code == 0
    refused = shell("resume", tmp_path / "simulated", "--wait", "3")
    assert (refused.code, "wait: only for live runs" in refused.err) == (2, True)
    shell("lab", tmp_path / "job.toml", "--out", tmp_path / "lab")
    refused = shell("resume", tmp_path / "lab", "--token-each")
    assert (refused.code, "token_each: this run is a lab" in refused.err) == (2, True)
    refused = shell("resume", tmp_path / "lab", "--threads", "2")
    assert (refused.code, "threads: a live run computes on its devices" in refused.err) == (2, True)


@pytest.mark.filterwarnings("default::potluck.errors.PotluckWarning")
def test_a_run_from_before_options_were_kept_listens_where_it_did(
    tmp_path: Path, shell: Shell, started: list[KeptOptions]
) -> None:
    (tmp_path / "job.toml").write_text(dump_job(make(SMALL)))
    shell("serve", tmp_path / "job.toml", "--listen", "127.0.0.1:8003", "--out", tmp_path / "run")
    (tmp_path / "run" / "options.json").unlink()
    assert "far enough" in shell("resume", tmp_path / "run").err
    assert started[1].serve is not None
    assert (started[1].serve.listen, started[1].serve.certs) == ("127.0.0.1:8003", None)

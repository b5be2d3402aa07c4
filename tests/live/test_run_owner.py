"""A run's folder has one owner, in both worlds and as commands: a second one is refused, a dead one replaced."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from potluck.journal import read_journal
from potluck.run.live_addresses import free_loopback_address
from potluck.run.run_lock import LOCK_FILE
from tests.cli.calling import Shell
from tests.live.command_processes import Command, CommandRunner, live_status, wait_until, write_job
from tests.simulation.runs import rounds

LONG = 1_000_000
TWO = {"devices": [{"name": "d", "count": 2, "flops": "20 MFLOP/s"}], "lease": 1.0}


@pytest.fixture
def potluck(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def _start(start_command: CommandRunner, verb: str, run: Path, count: int) -> Command:
    job = write_job(start_command.folder, fleet=TWO, stop={"rounds": count})
    listen = ("--listen", free_loopback_address().removeprefix("tcp/")) if verb == "serve" else ()
    return start_command(verb, job, *listen, "--out", run, "--quiet")


def _has_begun(run: Path) -> bool:
    return bool(list(run.glob("checkpoints/*.safetensors"))) or bool(live_status(run))


@pytest.mark.parametrize("verb", ["run", "lab", "serve"])
def test_a_second_writer_is_refused_with_who_holds_the_folder(
    start_command: CommandRunner, potluck: Shell, verb: str
) -> None:
    run = start_command.folder / "run"
    owner = _start(start_command, verb, run, LONG)
    wait_until("the run", lambda: _has_begun(run))
    job = start_command.folder / "job.toml"
    for words in (
        ("resume", run),
        ("run", job, "--out", run),
        ("serve", job, "--out", run),
        ("lab", job, "--out", run),
    ):
        refused = potluck(*words)
        assert refused.code == 2, words
        assert re.fullmatch(
            rf"error: {run} is held by process {owner.pid} .*on \S+ since \d{{4}}-.*; stop that first, or .*\n",
            refused.err,
        ), refused.err
    assert potluck("report", run, "--out", start_command.folder / "page.html").code == 0
    if verb != "run":
        assert potluck("status", run).code == 0
    os.kill(owner.pid, signal.SIGINT)
    assert owner.end() == 130
    assert not (run / LOCK_FILE).exists()


def test_a_killed_simulation_is_resumed_as_if_it_had_not_been(start_command: CommandRunner, potluck: Shell) -> None:
    run = start_command.folder / "run"
    owner = _start(start_command, "run", run, LONG)
    wait_until("some rounds", lambda: any(int(path.stem) > 3 for path in run.glob("checkpoints/*.safetensors")))
    os.kill(owner.pid, signal.SIGKILL)
    owner.end()
    assert (run / LOCK_FILE).exists()
    done = max(int(path.stem) for path in run.glob("checkpoints/*.safetensors"))
    resumed = potluck("resume", run, "--set", f"stop.rounds={done + 2}", "--quiet")
    assert (resumed.code, resumed.err) == (0, "")
    assert [span.fields["round"] for span in rounds(run)] == list(range(done + 2))


def test_a_killed_lab_with_a_torn_checkpoint_and_journal_is_resumed(
    start_command: CommandRunner, potluck: Shell
) -> None:
    run = start_command.folder / "run"
    lab = _start(start_command, "lab", run, LONG)
    wait_until("some rounds", lambda: any(int(path.stem) > 5 for path in run.glob("checkpoints/*.safetensors")))
    os.kill(lab.pid, signal.SIGKILL)
    lab.end()
    newest, before, *_ = sorted(run.glob("checkpoints/*.safetensors"), reverse=True)
    newest.write_bytes(newest.read_bytes()[:100])
    resumed = start_command("resume", run, "--set", f"stop.rounds={int(newest.stem) + 3}", "--json")
    assert resumed.end() == 0, resumed.err
    assert f"checkpoint {newest.stem} is damaged" in resumed.err
    assert f"resuming from checkpoint {before.stem}" in resumed.err
    assert json.loads(resumed.out)["rounds"] == int(newest.stem) + 3
    assert [span.fields["round"] for span in rounds(run)] == list(range(int(newest.stem) + 3)), "none lost or doubled"
    assert list(read_journal(run / "journal.jsonl"))

    journal = run / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 3])
    again = start_command("resume", run, "--set", f"stop.rounds={int(newest.stem) + 5}", "--json")
    assert again.end() == 0, again.err
    assert "journal.jsonl is shorter than checkpoint" in again.err
    assert json.loads(again.out)["rounds"] == int(newest.stem) + 5
    kept = [span.fields["round"] for span in rounds(run)]
    assert len(kept) == len(set(kept)), "what was trained is kept, though its records are lost"
    assert kept[-2:] == [int(newest.stem) + 3, int(newest.stem) + 4]

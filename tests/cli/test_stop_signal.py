"""Ctrl-C on a real process."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.calling import Shell, start

LONG = ("run", "job.toml", "--out", "kept", "--set", "stop.rounds=100000", "--set", "checkpoint=5")


def _wait_for(path: Path, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not any(path.glob("checkpoints/*[1-9]*.safetensors")):
        assert time.monotonic() < deadline, f"no checkpoint in {path} after {seconds} s"
        time.sleep(0.05)


def test_the_first_interrupt_leaves_a_resumable_run(potluck: Shell, folder: Path) -> None:
    run = start(LONG, folder)
    _wait_for(folder / "kept")
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=30)
    assert run.returncode == 130
    assert out.startswith("interrupted: ")
    assert "potluck resume kept" in out
    assert "stopping at a safe point" in err
    assert "Traceback" not in err
    rounds_done = json.loads((folder / "kept/summary.json").read_text())["rounds"]
    resumed = potluck("resume", "kept", "--set", f"stop.rounds={rounds_done + 5}", "--json")
    assert (resumed.code, resumed.json["status"], resumed.json["rounds"]) == (0, "done", rounds_done + 5)


def test_the_second_interrupt_ends_the_process_at_once(
    potluck: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals_seen = []

    def stuck(*args: object, stopping: Callable[[], bool], **more: object) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            signals_seen.append(stopping())
        raise AssertionError("the second signal was not heard")

    monkeypatch.setattr("potluck.run.simulate", stuck)
    before = signal.getsignal(signal.SIGINT)
    result = potluck("run", "job.toml", "--out", "kept")
    assert (result.code, result.out) == (130, "")
    assert signals_seen == [True]
    assert signal.getsignal(signal.SIGINT) is before

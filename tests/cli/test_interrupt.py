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
    until = time.monotonic() + seconds
    while not any(path.glob("checkpoints/*[1-9]*.safetensors")):
        assert time.monotonic() < until, f"no checkpoint in {path} after {seconds} s"
        time.sleep(0.05)


def test_the_first_stops_where_it_can_be_resumed(potluck: Shell, folder: Path) -> None:
    run = start(LONG, folder)
    _wait_for(folder / "kept")
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=30)
    assert run.returncode == 130
    assert out.startswith("interrupted: ")
    assert "potluck resume kept" in out
    assert "stopping at a safe point" in err
    assert "Traceback" not in err
    done = json.loads((folder / "kept/summary.json").read_text())["rounds"]
    again = potluck("resume", "kept", "--set", f"stop.rounds={done + 5}", "--json")
    assert (again.code, again.json["status"], again.json["rounds"]) == (0, "done", done + 5)


def test_the_second_ends_it_at_once(potluck: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []

    def stuck(*args: object, stopping: Callable[[], bool], **more: object) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            heard.append(stopping())
        raise AssertionError("the second signal was not heard")

    monkeypatch.setattr("potluck.run.simulate", stuck)
    before = signal.getsignal(signal.SIGINT)
    found = potluck("run", "job.toml", "--out", "kept")
    assert (found.code, found.out) == (130, "")
    assert heard == [True]
    assert signal.getsignal(signal.SIGINT) is before

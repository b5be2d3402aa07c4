"""Ctrl-C on a real process."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

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


def test_the_second_ends_it_at_once(folder: Path) -> None:
    slow = "import time\nfrom potluck.loops.parts.barrier import All\n"
    slow += "class Stuck(All, frozen=True, kw_only=True, tag='stuck'):\n"
    slow += "    def opens(self, progress):\n        open('stuck', 'w').close()\n        time.sleep(60)\n"
    (folder / "stuck_barrier.py").write_text(slow)
    run = start((*LONG, "--set", "rounds.barrier=stuck_barrier:Stuck"), folder)
    until = time.monotonic() + 60
    while not (folder / "stuck").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert run.poll() is None
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=20)
    assert run.returncode == 130
    assert "Traceback" not in err

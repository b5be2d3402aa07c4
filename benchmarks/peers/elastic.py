"""torchrun's elastic recovery: from kill −9 of a worker to the next step of the group.

elastic.py lead WORKLOAD WORKERS KILLS     starts torchrun and kills
elastic.py work WORKLOAD FOLDER            one worker, as torchrun starts it
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import workload
from crowd import Crowd, wait_for
from torch.nn.parallel import DistributedDataParallel

_BIN = Path(sys.executable).parent
_STEPS = 5  # between two kills
# Gloo finds the addresses of the dead in a store that outlives them, and cannot restart; see PyTorch issue 135712.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def lead(path: str, workers: int, kills: int) -> None:
    with tempfile.TemporaryDirectory() as name, Crowd(Path(name), _ENVIRONMENT) as crowd:
        group = [f"{_BIN}/torchrun", "--standalone", f"--nproc-per-node={workers}", f"--max-restarts={kills}"]
        crowd.start("torchrun", [*group, __file__, "work", path, name])
        try:
            taken = [_kill(Path(name), attempt) for attempt in range(kills)]
        except SystemExit as error:
            raise SystemExit(f"{error}\n{crowd.log('torchrun')[-2000:]}") from None
    figures = {"recovery_s": statistics.median(taken), "low_s": min(taken), "high_s": max(taken)}
    workload.say(f"torchrun, {workers} workers", ["torch"], figures)


def _kill(folder: Path, attempt: int) -> float:
    """Kill the last worker of this attempt of the group; how long until the next attempt has done a step."""
    wait_for(lambda: _steps(folder, attempt) >= _STEPS, f"step {_STEPS} of attempt {attempt}", 120.0)
    victim = json.loads((folder / f"attempt-{attempt}.json").read_text())["victim"]
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: _steps(folder, attempt + 1) >= 1, f"a step of attempt {attempt + 1}", 180.0)
    return float(json.loads((folder / f"attempt-{attempt + 1}.json").read_text())["first_s"]) - began


def _steps(folder: Path, attempt: int) -> int:
    note = folder / f"attempt-{attempt}.json"
    return int(json.loads(note.read_text())["steps"]) if note.exists() else 0


def work(path: str, folder: Path) -> None:
    """Trains for ever; the whole state is kept after every step, so that nothing but the step in work is lost."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    kept = workload.load(path)
    model, saved = kept.model(), folder / "model.pt"
    if saved.exists():
        model.load_state_dict(torch.load(saved, weights_only=True))
    shared = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(shared.parameters(), lr=kept.lr)
    pids = [0] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    note = {"victim": pids[-1], "steps": 0, "first_s": 0.0}
    while True:
        workload.step(shared, optimizer, kept.clients[dist.get_rank()])
        note["steps"] += 1
        note["first_s"] = note["first_s"] or time.monotonic()
        if dist.get_rank() == 0:
            _keep(folder, model, note)
        time.sleep(0.05)


def _keep(folder: Path, model: torch.nn.Module, note: dict[str, float]) -> None:
    """Written aside and renamed: it may be killed at any moment."""
    torch.save(model.state_dict(), folder / "aside.pt")
    (folder / "aside.pt").replace(folder / "model.pt")
    (folder / "aside.json").write_text(json.dumps(note))
    (folder / "aside.json").replace(folder / f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}.json")


if __name__ == "__main__":
    if sys.argv[1] == "lead":
        lead(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        work(sys.argv[2], Path(sys.argv[3]))

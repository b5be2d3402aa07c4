"""Elastic recovery of torchrun: from the kill −9 of a worker to the next step of the group.

elastic lead WORKLOAD WORKERS KILLS     starts torchrun and kills workers
elastic work WORKLOAD FOLDER            one worker, as torchrun starts it
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
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers import peer_workload
from benchmarks.peers.process_group import ProcessGroup, wait_for

_BIN = Path(sys.executable).parent
_STEPS = 5  # between two kills
# With a store that outlives the workers, Gloo finds stale addresses and cannot restart; see PyTorch issue 135712.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def lead(path: str, workers: int, kills: int) -> None:
    with tempfile.TemporaryDirectory() as name, ProcessGroup(Path(name), _ENVIRONMENT) as group:
        torchrun = [f"{_BIN}/torchrun", "--standalone", f"--nproc-per-node={workers}", f"--max-restarts={kills}"]
        group.start("torchrun", [*torchrun, "-m", "benchmarks.peers.elastic", "work", path, name])
        try:
            durations = [_time_recovery(Path(name), attempt) for attempt in range(kills)]
        except SystemExit as error:
            raise SystemExit(f"{error}\n{group.read_log('torchrun')[-2000:]}") from None
    figures = {"recovery_s": statistics.median(durations), "low_s": min(durations), "high_s": max(durations)}
    peer_workload.print_answer(f"torchrun, {workers} workers", ["torch"], figures)


def _time_recovery(folder: Path, attempt: int) -> float:
    """Kill the last worker of this attempt; return the seconds until the next attempt has done a step."""
    wait_for(lambda: _steps_done(folder, attempt) >= _STEPS, f"step {_STEPS} of attempt {attempt}", 120.0)
    victim = json.loads((folder / f"attempt-{attempt}.json").read_text())["victim"]
    start = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: _steps_done(folder, attempt + 1) >= 1, f"a step of attempt {attempt + 1}", 180.0)
    return float(json.loads((folder / f"attempt-{attempt + 1}.json").read_text())["first_s"]) - start


def _steps_done(folder: Path, attempt: int) -> int:
    status = folder / f"attempt-{attempt}.json"
    return int(json.loads(status.read_text())["steps"]) if status.exists() else 0


def work(path: str, folder: Path) -> None:
    """Train until killed; the state is saved after every step, so that only the step in progress is lost."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    shared = peer_workload.load_workload(path)
    model, saved = shared.model(), folder / "model.pt"
    if saved.exists():
        model.load_state_dict(torch.load(saved, weights_only=True))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=shared.lr)
    pids = [0] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    status = {"victim": pids[-1], "steps": 0, "first_s": 0.0}
    while True:
        peer_workload.train_step(parallel, optimizer, shared.clients[dist.get_rank()])
        status["steps"] += 1
        status["first_s"] = status["first_s"] or time.monotonic()
        if dist.get_rank() == 0:
            _save_state(folder, model, status)
        time.sleep(0.05)


def _save_state(folder: Path, model: torch.nn.Module, status: dict[str, float]) -> None:
    """Write to temporary files and rename them, since the worker may be killed at any moment."""
    torch.save(model.state_dict(), folder / "partial.pt")
    (folder / "partial.pt").replace(folder / "model.pt")
    (folder / "partial.json").write_text(json.dumps(status))
    (folder / "partial.json").replace(folder / f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}.json")


if __name__ == "__main__":
    if sys.argv[1] == "lead":
        lead(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        work(sys.argv[2], Path(sys.argv[3]))

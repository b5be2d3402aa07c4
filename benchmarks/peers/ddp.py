"""PyTorch's DistributedDataParallel over Gloo, each process behind a shaped link.

ddp.py lead WORKLOAD WORKERS ITERATIONS RATE     makes the links and starts the workers
ddp.py work WORKLOAD ITERATIONS                  one worker; rank and address come by the environment
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

import links
import torch
import torch.distributed as dist
import workload
from torch.nn.parallel import DistributedDataParallel


def lead(path: str, workers: int, iterations: int, rate: str) -> None:
    if trouble := links.problem():
        raise SystemExit(f"skipped: {trouble}")
    with links.Town([rate] * workers) as town:
        started = [_start(town, rank, workers, path, iterations) for rank in range(workers)]
        try:
            said = [process.communicate(timeout=120 + 10 * iterations) for process in started]
        finally:
            for process in started:
                process.kill()
    if any(process.returncode for process in started):
        raise SystemExit(f"a worker failed:\n{said[0][1][-2000:]}")
    print(said[0][0].splitlines()[-1])


def _start(town: links.Town, rank: int, workers: int, path: str, iterations: int) -> subprocess.Popen[str]:
    group = {
        "MASTER_ADDR": town.address(0),
        "MASTER_PORT": "29500",
        "RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    command = town.on(rank, [sys.executable, __file__, "work", path, str(iterations)])
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **group}
    )


def work(path: str, iterations: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    kept = workload.load(path)
    model = DistributedDataParallel(kept.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=kept.lr)
    marks = []
    for _ in range(iterations + 1):
        workload.step(model, optimizer, kept.clients[dist.get_rank()])
        marks.append(workload.now())
    taken = workload.gaps(marks)
    if dist.get_rank() == 0:
        figures = {"iteration_s": statistics.median(taken), "low_s": min(taken), "high_s": max(taken)}
        workload.say(f"PyTorch DDP over Gloo, {dist.get_world_size()} workers", ["torch"], figures)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "lead":
        lead(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        work(sys.argv[2], int(sys.argv[3]))

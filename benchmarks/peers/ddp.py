"""PyTorch's DistributedDataParallel over Gloo, each process behind a shaped link.

ddp lead WORKLOAD WORKERS ITERATIONS RATE     sets up the links and starts the workers
ddp work WORKLOAD ITERATIONS                  one worker; rank and address are in the environment
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks import shaped_network
from benchmarks.peers import peer_workload


def lead(path: str, workers: int, iterations: int, rate: str) -> None:
    if missing := shaped_network.missing_requirement():
        raise SystemExit(f"skipped: {missing}")
    with shaped_network.ShapedNetwork([rate] * workers) as network:
        started = [_start_worker(network, rank, workers, path, iterations) for rank in range(workers)]
        try:
            outputs = [process.communicate(timeout=120 + 10 * iterations) for process in started]
        finally:
            for process in started:
                process.kill()
    if any(process.returncode for process in started):
        raise SystemExit(f"a worker failed:\n{outputs[0][1][-2000:]}")
    print(outputs[0][0].splitlines()[-1])


def _start_worker(
    network: shaped_network.ShapedNetwork, rank: int, workers: int, path: str, iterations: int
) -> subprocess.Popen[str]:
    environment = {
        "MASTER_ADDR": network.address(0),
        "MASTER_PORT": "29500",
        "RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    command = network.command_on(rank, [sys.executable, "-m", "benchmarks.peers.ddp", "work", path, str(iterations)])
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def work(path: str, iterations: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    shared = peer_workload.load_workload(path)
    model = DistributedDataParallel(shared.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=shared.lr)
    marks = []
    for _ in range(iterations + 1):
        peer_workload.train_step(model, optimizer, shared.clients[dist.get_rank()])
        marks.append(time.perf_counter())
    durations = peer_workload.round_durations(marks)
    if dist.get_rank() == 0:
        figures = {"iteration_s": statistics.median(durations), "low_s": min(durations), "high_s": max(durations)}
        peer_workload.print_answer(f"PyTorch DDP over Gloo, {dist.get_world_size()} workers", ["torch"], figures)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "lead":
        lead(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        work(sys.argv[2], int(sys.argv[3]))

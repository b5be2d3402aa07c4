"""pfl-research's side of `simulation`, in one process or in one per core.

pfl_simulation WORKLOAD ROUNDS [--all-cores]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import cross_entropy

from benchmarks.peers import peer_workload


class Learner(torch.nn.Module):
    """The network with the two methods that pfl-research requires."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        return cross_entropy(self.network(inputs), targets)

    def metrics(self, inputs: Any, targets: Any) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(inputs, targets)) * len(inputs), len(inputs))}


class RoundTimes(TrainingProcessCallback):  # type: ignore[misc]
    """Records when each round ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self.ends.append(time.perf_counter())
        return False, Metrics()


def main(path: str, rounds: int) -> None:
    torch.set_num_threads(1)
    np.random.seed(0)  # every process must sample the same users
    work = peer_workload.load_workload(path)
    learner, times = Learner(work.model()), RoundTimes()
    # pfl-research applies the mean difference of the models as an optimizer step; a rate of 1 gives their mean.
    central = torch.optim.SGD(learner.parameters(), lr=1.0)
    model = PyTorchModel(learner, torch.optim.SGD, central)
    FederatedAveraging().run(
        backend=_backend(work),
        model=model,
        algorithm_params=_algorithm(rounds, len(work.clients)),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=len(work.clients[0][0])
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[times],
    )
    processes = get_framework_module().distributed
    if processes.global_rank == 0:
        figures = {
            "clients_per_s": peer_workload.clients_per_second(times.ends, len(work.clients)),
            "moved": peer_workload.weight_change(learner.network.state_dict(), work.state),
        }
        peer_workload.print_answer(f"pfl-research, {processes.world_size} process(es)", ["pfl", "torch"], figures)


def _backend(work: peer_workload.Workload) -> SimulatedBackend:
    users = list(range(len(work.clients)))
    data = FederatedDataset(
        lambda user: Dataset(work.clients[user], user_id=str(user)), MinimizeReuseUserSampler(users)
    )
    return SimulatedBackend(training_data=data, val_data=data)


def _algorithm(rounds: int, clients: int) -> NNAlgorithmParams:
    """One more round than requested, for warm-up; no evaluation."""
    return NNAlgorithmParams(
        central_num_iterations=rounds + 1, evaluation_frequency=10**9, train_cohort_size=clients, val_cohort_size=0
    )


def run_on_all_cores(path: str, rounds: str) -> None:
    """Replace this process by torchrun, whose workers share the clients."""
    torchrun = str(Path(sys.executable).parent / "torchrun")
    cores = len(os.sched_getaffinity(0))
    os.execv(
        torchrun,
        [torchrun, "--standalone", f"--nproc-per-node={cores}", "-m", "benchmarks.peers.pfl_simulation", path, rounds],
    )


if __name__ == "__main__":
    if "--all-cores" in sys.argv:
        run_on_all_cores(sys.argv[1], sys.argv[2])
    main(sys.argv[1], int(sys.argv[2]))

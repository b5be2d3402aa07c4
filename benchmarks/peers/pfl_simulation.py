"""pfl-research's side of `simulation`, in one process or in one for each core.

pfl_simulation.py WORKLOAD ROUNDS [--all-cores]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import workload
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


class Learner(torch.nn.Module):
    """The network with the two functions that pfl-research asks for."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        return cross_entropy(self.network(inputs), targets)

    def metrics(self, inputs: Any, targets: Any) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(inputs, targets)) * len(inputs), len(inputs))}


class Marks(TrainingProcessCallback):  # type: ignore[misc]
    """When each round ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self.ends.append(workload.now())
        return False, Metrics()


def main(path: str, rounds: int) -> None:
    torch.set_num_threads(1)
    np.random.seed(0)  # every process of a group must draw the same users
    work = workload.load(path)
    learner, marks = Learner(work.model()), Marks()
    # pfl-research adds the difference of the models by a step of an optimizer: with a rate of 1 that is their mean.
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
        callbacks=[marks],
    )
    processes = get_framework_module().distributed
    if processes.global_rank == 0:
        figures = {
            "clients_per_s": workload.pace(marks.ends, len(work.clients)),
            "moved": workload.moved(learner.network.state_dict(), work.state),
        }
        workload.say(f"pfl-research, {processes.world_size} process(es)", ["pfl", "torch"], figures)


def _backend(work: workload.Workload) -> SimulatedBackend:
    users = list(range(len(work.clients)))
    data = FederatedDataset(
        lambda user: Dataset(work.clients[user], user_id=str(user)), MinimizeReuseUserSampler(users)
    )
    return SimulatedBackend(training_data=data, val_data=data)


def _algorithm(rounds: int, clients: int) -> NNAlgorithmParams:
    """One round more than asked for, to warm up; no evaluation after it."""
    return NNAlgorithmParams(
        central_num_iterations=rounds + 1, evaluation_frequency=10**9, train_cohort_size=clients, val_cohort_size=0
    )


def on_all_cores(path: str, rounds: str) -> None:
    """The same again under torchrun, whose processes share the clients."""
    torchrun = str(Path(sys.executable).parent / "torchrun")
    cores = len(os.sched_getaffinity(0))
    os.execv(torchrun, [torchrun, "--standalone", f"--nproc-per-node={cores}", __file__, path, rounds])


if __name__ == "__main__":
    if "--all-cores" in sys.argv:
        on_all_cores(sys.argv[1], sys.argv[2])
    main(sys.argv[1], int(sys.argv[2]))

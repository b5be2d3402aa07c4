"""What a job is prepared into before it is handed to a world, whichever loop it runs; and `plan`, which stops there."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace
from torch import Tensor, nn

from potluck.data import Dataset
from potluck.errors import SettingError
from potluck.job import Job, check_constructed_job, load_job, make
from potluck.loops.leader import RunPolicy
from potluck.loops.node import Node
from potluck.loops.run_progress import RunOutcome, RunProgress
from potluck.model.frozen_weights import FrozenWeights
from potluck.model.metrics import TaskMetrics
from potluck.run.argument_checks import check_folder, check_task
from potluck.run.device_state import DeviceStates
from potluck.run.job_plan import JobPlan
from potluck.run.pipeline_setup import PipelineSetup
from potluck.run.rounds_setup import RoundsSetup
from potluck.task import Task, build_task

__all__ = ["GivenJob", "PreparedJob", "load_given_job", "plan", "prepare_job"]

GivenJob = Job | Mapping[str, Any] | str | Path


class CheckpointedModel(Protocol):
    """The model on the coordinator's side, as far as checkpoints are concerned."""

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from a checkpoint."""


class CoordinatorLoop(Protocol):
    """Leads a run."""

    def main(self) -> Coroutine[Any, Any, RunOutcome]: ...


class DeviceLoop(Protocol):
    """Takes part in a run, for one incarnation of a device."""

    def main(self) -> Coroutine[Any, Any, None]: ...


class PreparedJob(Protocol):
    """A job that is ready to run in either world."""

    @property
    def job(self) -> Job:
        """The job, with every `auto` replaced."""

    @property
    def module(self) -> nn.Module | None:
        """The model; None where only time is modelled."""

    @property
    def data(self) -> Dataset | None:
        """What it is trained on; None where only time is modelled."""

    @property
    def server(self) -> CheckpointedModel: ...

    @property
    def model_digest(self) -> str:
        """Equal on the coordinator and on its devices if they build the same model."""

    @property
    def frozen(self) -> FrozenWeights:
        """The weights that training does not change, which a device builds itself or fetches once."""

    @property
    def max_message_bytes(self) -> int: ...

    def build_coordinator(self, node: Node, policy: RunPolicy, progress: RunProgress) -> CoordinatorLoop: ...

    def build_device_loop(self, node: Node, states: DeviceStates) -> DeviceLoop: ...

    def held_samples(self, name: str) -> int | None:
        """What a device of this name declares when it joins, if its updates count by their samples."""

    def check_device(self, name: str) -> None:
        """Refuse what this machine, which trains as the device of this name, cannot do; may take seconds."""

    def live_inputs(self, node: Node) -> AbstractAsyncContextManager[None]:
        """The context in which a live device runs its loop."""

    def save_trained_model(self, folder: Path | None) -> tuple[nn.Module | None, Mapping[str, Any]]:
        """The trained model and what the summary says of it; saved to the folder if there is one."""

    @property
    def metrics(self) -> TaskMetrics:
        """What the task is evaluated by."""

    def keep_best(self) -> None:
        """Keep the newest version of the model as the best one."""

    def build_best_module(self) -> nn.Module:
        """A copy of the model with the weights of the version that was kept."""

    def forecast(self) -> JobPlan:
        """What the job is expected to take."""


def prepare_job(job: GivenJob, task: Task | None, data: Path | None, *, load_weights: bool = True) -> PreparedJob:
    """Build everything that a run needs; without `load_weights` a checkpoint or the coordinator has the weights."""
    job, data = load_given_job(job), check_folder("data", data)
    check_task(task)
    kind: type[RoundsSetup | PipelineSetup] = RoundsSetup if job.pipeline is None else PipelineSetup
    return kind.from_job(job, task, data, load_weights)


def load_given_job(job: GivenJob, overrides: Sequence[str] = ()) -> Job:
    """A job from its file or from plain tables, with overrides; or as it is, which has them already."""
    if isinstance(job, Job):
        check_constructed_job(job)
        return job
    if isinstance(job, Mapping):
        return make(job, overrides)
    if not isinstance(job, str | Path):
        raise SettingError("job", f"expected a job's file, its tables or a potluck.Job, got {type(job).__name__}")
    return load_job(Path(job), overrides)


def plan(job: GivenJob, *, task: Task | None = None, data: Path | None = None) -> JobPlan:
    """Predict what a round takes on each kind of device, or how a pipeline is laid out; nothing is trained."""
    if isinstance(job, Job):
        job = replace(job, timing_only=True)
    job = load_given_job(job, ["timing_only=true"])
    if task is None and isinstance(job.task, str):
        task = build_task(job.task, check_folder("data", data))
    return prepare_job(job, task, data).forecast()

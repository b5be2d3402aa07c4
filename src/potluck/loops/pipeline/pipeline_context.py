"""What the coordinator of a pipeline run is given: settings, fleet, planner, archive, policy and progress."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from potluck.loops.frozen_exchange import FrozenBackend
from potluck.loops.leader import RunPolicy
from potluck.loops.pipeline.model_archive import ModelArchive
from potluck.loops.pipeline.pipeline_planner import PipelinePlanner
from potluck.loops.pipeline.settings import Pipeline
from potluck.loops.run_progress import RunProgress

__all__ = ["PipelineContext", "PipelineRunPolicy"]


class PipelineRunPolicy(RunPolicy, Protocol):
    """A run's policy, with what a pipeline needs to follow it. One round is one batch."""

    def next_drain_batch(self, batch: int) -> int:
        """The next batch after which the pipeline must drain: to evaluate, save or stop."""

    def evaluate_model(self, weights: Any) -> dict[str, float]:
        """Score a version of the whole model."""

    def save_model(self, weights: Any, progress: RunProgress, now: float) -> None:
        """Save the whole model and the run, so that it can resume at this point."""


class PipelineContext(NamedTuple):
    """Everything a pipeline coordinator works with besides its node."""

    settings: Pipeline
    fleet: tuple[str, ...]
    planner: PipelinePlanner
    archive: ModelArchive
    policy: PipelineRunPolicy
    progress: RunProgress
    batch_samples: int
    frozen: FrozenBackend | None = None  # weights that devices may have to fetch before they run a stage
    max_message_bytes: int = 1 << 40  # the most that one message can take

    @property
    def data_holders(self) -> tuple[str, ...]:
        """The devices that hold the data and may be the first stage, in order of preference."""
        return self.settings.data_holders(self.fleet)

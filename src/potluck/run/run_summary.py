"""Builds the summary of a run that has ended: how, how far it got, and what each device spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from potluck.loops.run_progress import RunOutcome

if TYPE_CHECKING:
    from potluck.run.run_store import RunStore

__all__ = ["build_summary"]


def build_summary(store: RunStore, outcome: RunOutcome, wall_s: float) -> dict[str, Any]:
    """The content of summary.json."""
    job, progress = store.job, store.progress
    return {
        "name": job.title,
        "recipe": str(job.recipe),
        "seed": job.seed,
        "status": outcome.status,
        "reason": outcome.reason,
        "rounds": progress.round,
        "time_s": store.now,
        "accuracy": progress.score.get("accuracy"),
        "loss": progress.score.get("loss"),
        **_metric_figures(store),
        "bytes": progress.traffic_bytes,
        "samples": progress.samples,
        "updates": progress.updates,
        "late": progress.late,
        "refused": progress.refused,
        **({"clipped": progress.clipped} if progress.clipped else {}),
        **_stream_counts(store),
        **_dropped_records(store),
        "devices": store.tally.device_summary(store.now),
        "limit": store.tally.bottleneck_sentence(store.now),
        "wall_s": round(wall_s, 3),
    }


def _metric_figures(store: RunStore) -> dict[str, Any]:
    """The metrics of a task that lists them, and the best evaluation if the best model is kept."""
    progress, metrics = store.progress, store.metrics
    listed = {name: progress.score.get(name) for name in metrics.directions}
    figures: dict[str, Any] = {} if metrics.listed is None else {"metrics": listed}
    if store.keeps_best and progress.best_model is not None:
        figures["best"] = msgspec.to_builtins(progress.best_model)
    return figures


def _stream_counts(store: RunStore) -> dict[str, Any]:
    """What became of the samples that streamed in: from the buffers of this process, else from the journal."""
    account = store.device_states.sample_account
    streams = store.tally.stream_summary() if account is None else msgspec.to_builtins(account)
    return {} if streams is None else {"streams": streams}


def _dropped_records(store: RunStore) -> dict[str, Any]:
    """How many records the journal misses, because the folder could not be written for too long."""
    dropped = 0 if store.journal.file is None else store.journal.file.dropped
    return {"records_dropped": dropped} if dropped else {}

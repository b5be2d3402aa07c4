"""Runs a prepared job in a world and keeps what comes of it: the same steps and the same failures in both worlds."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from potluck.errors import UserError
from potluck.loops.node import COORDINATOR
from potluck.loops.run_progress import RunOutcome
from potluck.run.prepared_job import PreparedJob
from potluck.run.run_store import RunStore
from potluck.worlds.device_error import DeviceError

__all__ = ["Result", "run_to_end"]


@dataclass(frozen=True)
class Result:
    """How a run ended, its summary, its folder and the trained model."""

    status: str  # "done", "failed" or "interrupted"
    reason: str
    summary: dict[str, Any]
    folder: Path | None
    module: nn.Module | None

    @property
    def exit_code(self) -> int:
        return {"done": 0, "failed": 1, "interrupted": 130}[self.status]


def run_to_end(prepared: PreparedJob, store: RunStore, world: Callable[[], RunOutcome]) -> Result:
    """Continue from the store's checkpoint if it has one, run, and save the model and the summary.

    Code of the user that raises ends the run as failed, wherever it ran; its traceback is kept as error.txt.
    """
    started = time.perf_counter()
    if store.tensors is not None:
        prepared.server.restore(store.tensors)
    store.attach_tensors(prepared.server.tensors)
    with _single_threaded_torch():
        try:
            outcome = world()
        except UserError:
            raise
        except DeviceError as error:
            outcome = _fail_run(store, str(error), error.trace)
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            outcome = _fail_run(store, f"{COORDINATOR}: {type(error).__name__}: {error}", trace)
    module, model_summary = prepared.save_trained_model(store.folder)
    summary = store.finish_run(outcome, time.perf_counter() - started, model_summary)
    return Result(outcome.status, outcome.reason, summary, store.folder, module)


def _fail_run(store: RunStore, reason: str, trace: str) -> RunOutcome:
    store.write_error(trace)
    return RunOutcome("failed", reason)


@contextmanager
def _single_threaded_torch() -> Iterator[None]:
    """Each of our threads computes on one core, so that results do not depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""A pipeline of four layers, timing only, for the tests of its two sides on a recording node."""

from __future__ import annotations

import math
from typing import Any

from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.loops.pipeline.settings import Pipeline
from potluck.loops.pipeline.stage_backend import TimingOnlyStages
from potluck.model.indexed_dataset import MicroBatches
from potluck.settings import decode_settings

__all__ = ["BATCH", "COSTS", "SIZES", "RefusingStages", "settings_of"]

BATCH = 10
COSTS = PipelineCosts([1.0] * 4, [2.0] * 4, [10.0] * 3 + [math.inf], [1000] * 4, [0] * 4)
SIZES = MicroBatches(BATCH, BATCH)


class RefusingStages(TimingOnlyStages):
    """Refuses payloads of 13 bytes."""

    def __init__(self) -> None:
        super().__init__(COSTS, SIZES)

    def activation_refusal(self, first: int, samples: int, payload: Any) -> str | None:
        return "13 bytes" if payload.nbytes == 13 else None

    def weights_refusal(self, first: int, last: int, payload: Any, step: bool = False) -> str | None:
        return "13 bytes" if payload.nbytes == 13 else None


def settings_of(**settings: Any) -> Pipeline:
    return decode_settings(
        {"batch": BATCH, "replication": "none", "layer_costs": "macs", "retry": "2 s", **settings}, Pipeline
    )

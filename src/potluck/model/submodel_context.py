"""What a sub-model part may know of its job, and what it can say about samples, batches and plans.

The hooks of `Submodel` take and return these; a part of any kind needs nothing else of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from potluck.fleet import Device
from potluck.model.layer_chain import LayerChain
from potluck.model.model_state import WeightLayout
from potluck.planning.groups import Groups

__all__ = [
    "ClassBalance",
    "Indices",
    "LabelledSamples",
    "PlanTable",
    "SampleRules",
    "SubmodelContext",
    "SubmodelPlan",
    "TrainedModel",
]

Indices = npt.NDArray[np.int64]


class LabelledSamples(Protocol):
    """Samples that can be asked for by index, and their labels."""

    @property
    def labels(self) -> Indices: ...

    def __len__(self) -> int: ...

    def batch(self, indices: Indices) -> tuple[Any, Any]: ...


@dataclass(frozen=True)
class SubmodelContext:
    """The facts of a job that a sub-model part decides by."""

    devices: Sequence[Device]
    seed: int
    batch_size: int  # samples of a full mini-batch
    slot_s: float | None = None  # `rounds.slot`; None: what the fastest device takes for a whole step
    pretrained: bool = False  # whether the job names weights to start from
    streaming: bool = False  # whether data arrives while the run goes on
    stateful_codec: bool = False  # whether updates also contain what earlier ones left out
    loss: str | None = None  # its name; None: the user's own function
    samples: LabelledSamples | None = None  # for training; None where only time is modelled
    assumed_samples: int = 0  # of each device, where only time is modelled

    @property
    def device_names(self) -> list[str]:
        return [device.name for device in self.devices]


class TrainedModel(NamedTuple):
    """The model that a run trains, as `Submodel.adapt_model` returned it, and what its devices hold and afford."""

    chain: LayerChain
    layout: WeightLayout
    affordable_fraction: Callable[[str], float]  # of a whole step, by device
    shards: Mapping[str, Indices] | None = None  # sample indices by device; None where only time is modelled


class SampleRules(NamedTuple):
    """What a part asks of the split."""

    groups: Groups | None = None  # classes that belong together; None: the split decides
    groups_by_device: Mapping[str, tuple[int, ...]] = {}
    held_out: Indices = np.zeros(0, np.int64)  # samples that no device trains on


class ClassBalance(NamedTuple):
    """A device trains on as many samples of other classes as of its own ones."""

    own_classes: tuple[int, ...]
    negatives: Literal["own", "generated"]  # samples of other classes that the device has, or made of its own ones
    most_samples: int | None = None  # in a turn, with repetitions; None: no limit


class PlanTable(NamedTuple):
    """A table of `potluck plan`."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class SubmodelPlan(NamedTuple):
    """What a part adds to `potluck plan`."""

    data: Mapping[str, Any]  # for --json, beside the devices
    tables: Sequence[PlanTable] = ()
    lines: Sequence[str] = ()

"""The settings of the rounds loop: one key for each part of a round."""

from __future__ import annotations

from typing import Annotated

import msgspec

from potluck.loops.parts.barrier import All, Barrier
from potluck.loops.parts.batching import Batching, Fixed
from potluck.loops.parts.scaling import Scaling, Unscaled
from potluck.loops.parts.transfer import Sequential, Transfer
from potluck.model.codecs import Codec, Dense
from potluck.model.local import Gradient, Local
from potluck.model.merge import Merge, Samples
from potluck.model.optimizers import Constant, Optimizer, Schedule, Sgd
from potluck.model.skew import Plain, Skew
from potluck.model.submodels.parts import Submodel, Whole
from potluck.settings import Settings
from potluck.units import Seconds

__all__ = ["Rounds"]


class Rounds(Settings, frozen=True, kw_only=True):
    """Who takes part in a round, what they do, and how it becomes a new model."""

    devices: Annotated[int, msgspec.Meta(ge=0)] = 0  # how many are invited (0: all that are here)
    least: Annotated[int, msgspec.Meta(ge=1)] = 1  # how many must be here to begin
    batching: Batching = Fixed()
    local: Local = Gradient()
    local_schedule: Schedule = Constant()
    skew: Skew = Plain()  # what a device's loss does about its own class frequencies
    transfer: Transfer = Sequential()
    submodel: Submodel = Whole()
    slot: Seconds | None = None  # of a mini-batch: a device trains what fits (default: the fastest one's whole step)
    codec: Codec = Dense()
    merge: Merge = Samples()
    barrier: Barrier = All()
    server: Optimizer = Sgd()
    scaling: Scaling = Unscaled()  # of the learning rate, by the samples of a round
    schedule: Schedule = Constant()
    retry: Seconds = Seconds(5)  # until an unanswered request is sent again; doubles each time
    patience: Seconds = Seconds(1800)  # how long the run waits without any progress before it gives up

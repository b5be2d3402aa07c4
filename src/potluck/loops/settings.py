"""The settings of the rounds loop: one key for each part of a round."""

from __future__ import annotations

from typing import Annotated

import msgspec

from potluck.loops.parts.barrier import AllBarrier, Barrier
from potluck.loops.parts.batching import Batching, FixedBatching
from potluck.loops.parts.lr_scaling import LrScaling, NoLrScaling
from potluck.loops.parts.model_transfer import ModelTransfer, SequentialTransfer
from potluck.model.class_skew import NoSkewCorrection, SkewCorrection
from potluck.model.codecs import Codec, DenseCodec
from potluck.model.local_training import GradientTraining, LocalTraining
from potluck.model.optimizers import ConstantSchedule, LearningRateSchedule, Optimizer, Sgd
from potluck.model.submodels.submodel_parts import Submodel, WholeModel
from potluck.model.update_merging import MergeRule, SampleWeighted
from potluck.settings import Settings
from potluck.units import Seconds

__all__ = ["Rounds"]


class Rounds(Settings, frozen=True, kw_only=True):
    """Which devices take part in a round, what they do, and how that becomes a new model."""

    devices: Annotated[int, msgspec.Meta(ge=0)] = 0  # how many are invited (0: all that are connected)
    least: Annotated[int, msgspec.Meta(ge=1)] = 1  # how many must be connected to begin
    batching: Batching = FixedBatching()
    local: LocalTraining = GradientTraining()
    local_schedule: LearningRateSchedule = ConstantSchedule()
    skew: SkewCorrection = NoSkewCorrection()  # how a device's loss corrects for its own class frequencies
    transfer: ModelTransfer = SequentialTransfer()
    submodel: Submodel = WholeModel()
    slot: Seconds | None = (
        None  # time for a mini-batch: a device trains what fits (default: the fastest device's whole step)
    )
    codec: Codec = DenseCodec()
    merge: MergeRule = SampleWeighted()
    barrier: Barrier = AllBarrier()
    server: Optimizer = Sgd()
    scaling: LrScaling = NoLrScaling()  # of the learning rate, by the samples of a round
    schedule: LearningRateSchedule = ConstantSchedule()
    retry: Seconds = Seconds(5)  # until an unanswered request is sent again; doubles each time
    patience: Seconds = Seconds(1800)  # how long the run may go without progress before it fails

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
from potluck.settings import Settings, doc
from potluck.units import Seconds

__all__ = ["Rounds"]


class Rounds(Settings, frozen=True, kw_only=True):
    """`[rounds]`: who takes part in a round, what they do, and how it becomes a new model."""

    devices: Annotated[int, msgspec.Meta(ge=0), doc("Devices invited to a round; 0 invites all that are present.")] = 0
    least: Annotated[int, msgspec.Meta(ge=1), doc("Devices that must be present for a round to begin.")] = 1
    batching: Annotated[Batching, doc("How many samples a device uses.")] = FixedBatching()
    local: Annotated[LocalTraining, doc("What a device computes in its turn.")] = GradientTraining()
    local_schedule: Annotated[LearningRateSchedule, doc("Factor on the devices' learning rate, by round.")] = (
        ConstantSchedule()
    )
    skew: Annotated[SkewCorrection, doc("How a device's loss accounts for its own class frequencies.")] = (
        NoSkewCorrection()
    )
    transfer: Annotated[ModelTransfer, doc("How pull and push are cut into segments.")] = SequentialTransfer()
    submodel: Annotated[Submodel, doc("Which sub-model a device trains.")] = WholeModel()
    slot: Annotated[
        Seconds | None,
        doc("Time that a device has for a mini-batch; by default a step of the whole model on the fastest device."),
    ] = None
    codec: Annotated[Codec, doc("How an update is encoded on the wire.")] = DenseCodec()
    merge: Annotated[MergeRule, doc("How updates are weighted in the mean.")] = SampleWeighted()
    barrier: Annotated[Barrier, doc("When the round closes.")] = AllBarrier()
    server: Annotated[Optimizer, doc("Optimizer with which the coordinator applies the merged update.")] = Sgd()
    scaling: Annotated[LrScaling, doc("Factor on the learning rate, by the samples of a round.")] = NoLrScaling()
    schedule: Annotated[LearningRateSchedule, doc("Factor on the coordinator's learning rate, by round.")] = (
        ConstantSchedule()
    )
    retry: Annotated[Seconds, doc("Time until an unanswered request is sent again; doubles each time.")] = Seconds(5)
    patience: Annotated[Seconds, doc("Time without any progress after which the run gives up.")] = Seconds(1800)

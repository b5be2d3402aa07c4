"""The settings of the rounds loop: one key for each part of a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from potluck.errors import SettingError
from potluck.loops.parts.barrier import AllBarrier, Barrier
from potluck.loops.parts.batching import Batching, FixedBatching
from potluck.loops.parts.lr_scaling import LrScaling, NoLrScaling
from potluck.loops.parts.model_transfer import ModelTransfer, SequentialTransfer
from potluck.model.class_skew import NoSkewCorrection, SkewCorrection
from potluck.model.codecs import Codec, DenseCodec, SparseCodec
from potluck.model.local_training import GradientTraining, LocalTraining
from potluck.model.lr_schedules import ConstantSchedule, LearningRateSchedule
from potluck.model.optimizers import Optimizer, Sgd
from potluck.model.submodels.submodel_parts import Submodel, WholeModel
from potluck.model.update_merging import MergeRule, SampleWeighted
from potluck.settings import Settings, doc, kind_of
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
    pull_codec: Annotated[
        Codec,
        doc(
            "How the model is encoded on the wire: `dense` sends the weights, any other the difference from what a"
            " device holds; what it leaves out is in the next difference."
        ),
    ] = DenseCodec()
    merge: Annotated[MergeRule, doc("How updates are weighted in the mean.")] = SampleWeighted()
    own_samples: Annotated[
        int,
        msgspec.Meta(ge=0),
        doc("Samples that count of a device that declares more than the job's split gives it: data of its own."),
    ] = 0
    norm_bound: Annotated[
        float,
        msgspec.Meta(ge=0.0, le=1e6),
        doc(
            "Times the usual norm (the highest running median so far) that an update may have; a longer one is scaled "
            "down to the median of recent ones. 0 turns this off."
        ),
    ] = 50.0
    barrier: Annotated[Barrier, doc("When the round closes.")] = AllBarrier()
    server: Annotated[Optimizer, doc("Optimizer with which the coordinator applies the merged update.")] = Sgd()
    scaling: Annotated[LrScaling, doc("Factor on the learning rate, by the samples of a round.")] = NoLrScaling()
    schedule: Annotated[LearningRateSchedule, doc("Factor on the coordinator's learning rate, by round.")] = (
        ConstantSchedule()
    )
    average_decay: Annotated[
        float,
        msgspec.Meta(ge=0.0, lt=1.0),
        doc(
            "Decay, per round, of the moving average of the model, which is then what is evaluated and saved; devices"
            " train the newest version. 0 evaluates and saves the newest version."
        ),
    ] = 0.0
    retry: Annotated[Seconds, doc("Time until an unanswered request is sent again; doubles each time.")] = Seconds(5)
    turn_patience: Annotated[
        Seconds | None,
        doc(
            "Longest time that a round waits for a device that is connected but sends nothing; then it goes on without"
            " the device until that answers again. By default eight times what the device's turns take."
        ),
    ] = None
    patience: Annotated[Seconds, doc("Time without any progress after which the run gives up.")] = Seconds(1800)

    def unused_keys(self) -> Mapping[str, str]:
        unused = {}
        if not self.submodel.uses_slot:
            unused["slot"] = f'with submodel = "{kind_of(self.submodel)}", which does not depend on it'
        if not self.local.has_learning_rate:
            unused["local_schedule"] = f'with local = "{kind_of(self.local)}", which has no learning rate'
        if isinstance(self.pull_codec, SparseCodec):
            unused["pull_codec.error_feedback"] = "on pulls, where the next difference has what this one leaves out"
        if not self.barrier.carries_over:
            for key in self.merge.staleness_keys:
                unused[f"merge.{key}"] = (
                    f'with barrier = "{kind_of(self.barrier)}", where no update is of an older model'
                )
        return unused

    def unused_stream_keys(self, streams: bool) -> dict[str, str]:
        """The keys below `rounds` that have no effect, depending on whether samples stream in."""
        if streams:
            why = "with [stream], where `batching` says how many samples a turn has"
            known = {"rounds.own_samples": "with [stream], where a device declares no samples"}
            return known | {f"rounds.local.{key}": why for key in self.local.turn_length_keys}
        return {f"rounds.batching.{key}": "without [stream]" for key in self.batching.stream_keys}

    def __post_init__(self) -> None:
        if self.turn_patience is not None and not self.turn_patience > 0:
            raise ValueError("`turn_patience` must be above 0")
        if isinstance(self.codec, SparseCodec) and self.codec.momentum and self.server.has_momentum:
            raise SettingError(
                "codec.momentum", "devices and the coordinator would both apply momentum; set that of `server` to 0"
            )

"""Trains a small model while charging the time and bytes of a large one.

The models of a publication may be too large to simulate; what streams, compression and waiting do to the duration of a
run depends on their sizes only. Every layer is charged the same multiple of its operations, and of its bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from potluck.job import Job
from potluck.loops.device_costs import DeviceCosts
from potluck.model import zoo
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.model_state import ModelState
from potluck.model.pull_deltas import EncodedSegment, PullRequest
from potluck.model.shape_only import ShapeOnlyMode
from potluck.model.torch_server import TorchServer
from potluck.model.torch_trainer import TorchTrainer
from potluck.model.training_session import LocalTrainingSession
from potluck.payload import Payload
from potluck.task import TaskSettings

__all__ = ["StandInScale", "stand_in_scale", "stand_in_server_class", "stand_in_trainer_class"]


class StandInScale(NamedTuple):
    """What is charged, as a multiple of the operations and bytes of the model that is trained."""

    flops: float = 1.0
    bytes: float = 1.0

    def scale_costs(self, costs: DeviceCosts) -> DeviceCosts:
        return DeviceCosts(
            [self.flops * flop for flop in costs.forward_flop],
            [self.flops * flop for flop in costs.backward_flop],
            [self.scale_bytes(nbytes) for nbytes in costs.pull_bytes],
            [self.scale_bytes(nbytes) for nbytes in costs.push_bytes],
            costs.flops,
            costs.measured,  # empty where there is a stand-in
        )

    def scale_bytes(self, nbytes: int) -> int:
        return round(self.bytes * nbytes)

    def scale_payload(self, payload: Payload) -> Payload:
        return Payload(self.scale_bytes(payload.nbytes), payload.arrays)


def stand_in_scale(job: Job, chain: LayerChain) -> StandInScale:
    """The model that `task.costs` names, at its natural input shape, relative to the model that is trained."""
    if not isinstance(job.task, TaskSettings) or job.task.costs is None:
        return StandInScale()
    macs, params = _named_model_size(job.task.costs)
    own_macs, own_params = _macs_and_params(chain)
    return StandInScale(macs / max(1, own_macs), params / max(1, own_params))


@cache
def _named_model_size(name: str) -> tuple[int, int]:
    entry = zoo.model_entry(name)
    with ShapeOnlyMode():
        return _macs_and_params(trace_layers(zoo.build_model(name), entry.shape, dtype=entry.dtype))


def _macs_and_params(chain: LayerChain) -> tuple[int, int]:
    """MACs of one sample, and parameters."""
    return sum(layer.macs for layer in chain.layers), sum(param.numel() for param in chain.module.parameters())


def stand_in_server_class(scale: StandInScale) -> type[TorchServer]:
    """A server whose segments are charged at this scale."""
    if scale == StandInScale():
        return TorchServer

    class StandInServer(TorchServer):
        def encode_segment(self, state: ModelState, part: Any, request: PullRequest) -> EncodedSegment:
            payload, base = super().encode_segment(state, part, request)
            return EncodedSegment(scale.scale_payload(payload), base)

    return StandInServer


def stand_in_trainer_class(scale: StandInScale) -> type[TorchTrainer]:
    """A trainer whose updates are charged at this scale."""
    if scale == StandInScale():
        return TorchTrainer

    class StandInSession(LocalTrainingSession):
        def encode(self, first: int, last: int) -> Payload:
            return scale.scale_payload(super().encode(first, last))

    class StandInTrainer(TorchTrainer):
        def start_session(self, *arguments: Any, **options: Any) -> LocalTrainingSession:
            return StandInSession(self, *arguments, **options)

    return StandInTrainer

"""Compressed pulls in a job of rounds: whether it has them, how differences are cut, and what they do not fit."""

from __future__ import annotations

from potluck.errors import SettingError
from potluck.loops.settings import Rounds
from potluck.model.codecs import DenseCodec, SparseCodec
from potluck.model.model_state import WeightLayout
from potluck.model.pull_deltas import DeltaFormat
from potluck.model.submodel_interface import SubmodelExtractor

__all__ = ["build_delta_format", "compresses_pulls"]


def compresses_pulls(rounds: Rounds) -> bool:
    """Whether devices pull differences instead of weights."""
    return not isinstance(rounds.pull_codec, DenseCodec)


def build_delta_format(rounds: Rounds, layout: WeightLayout, extractor: SubmodelExtractor | None) -> DeltaFormat | None:
    """How the differences are encoded; None where the weights are pulled. SettingError where that does not fit."""
    if not compresses_pulls(rounds):
        return None
    codec, problem = rounds.pull_codec, None
    if extractor is not None:
        problem = "devices pull different sub-models, not differences of one model"
    elif rounds.transfer.drafts_next_round:
        problem = "with duplex transfers layers leave before the version that they belong to is complete"
    elif isinstance(codec, SparseCodec) and codec.momentum:
        problem = "momentum is for gradients, and pulls are differences of weights"
    if problem is not None:
        raise SettingError("rounds.pull_codec", f'{problem}; set it to "dense"')
    return DeltaFormat.for_transfers(codec, layout, cut=rounds.transfer.strategy != "sequential")

"""What an honest device answers, so that a run under attack goes on: updates, layers and reports that fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from potluck.loops.messages import Invite, Message, Push, Release, Released
from potluck.loops.pipeline import messages as pipeline
from potluck.worlds.live import control_messages as control
from potluck.worlds.live.wire_format import ControlFrame, TransferOffer

__all__ = ["honest_replies"]


def honest_replies(frame: ControlFrame | TransferOffer, recorded: Sequence[Message]) -> list[Any]:
    """The answers to a message of the coordinator; `recorded` are those of an undisturbed run."""
    if isinstance(frame, TransferOffer):
        return [control.ChunksReceived(frame.number, 2**32 - 1)]
    match frame.message:
        case Invite(turn=turn):
            return [msgspec.structs.replace(each, turn=turn) for each in recorded if isinstance(each, Push)][:1]
        case Release(turn=turn):
            return [Released(turn)]
        case pipeline.Halt(term=term):
            return [pipeline.Inventory(term, ())]
        case pipeline.Assign(term=term):
            return [pipeline.Ready(term)]
        case pipeline.Begin(term=term, start=start, end=end):
            return [pipeline.Report(term, batch, 0.01, 1.0) for batch in range(start + 1, min(end, start + 20) + 1)]
        case pipeline.Inquire(term=term):
            return [pipeline.Doing(term)]
        case pipeline.Fetch(term=term, first=first, last=last, version=version):
            return [
                msgspec.structs.replace(each, term=term, version=version)
                for each in recorded
                if isinstance(each, pipeline.Piece) and (each.first, each.last) == (first, last)
            ][:1]
        case pipeline.Examine(term=term, attempt=attempt):
            scored = [each for each in recorded if isinstance(each, pipeline.Scored)]
            return [msgspec.structs.replace(each, term=term, attempt=attempt) for each in scored][:1]
    return []

"""Real messages of both loops, recorded from short simulated runs: what mutations start from."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
import numpy as np

import potluck
from potluck.job import Job, make
from potluck.journal import Instant, Scalar, Span
from potluck.loops import messages
from potluck.loops.messages import Message
from potluck.loops.node import COORDINATOR
from potluck.loops.pipeline import messages as pipeline_messages
from potluck.payload import Payload
from potluck.run import joined_device
from potluck.worlds.live import control_messages as control
from potluck.worlds.simulated.simulated_world import SimulatedWorld

__all__ = ["ATTACKER", "PEER", "ROUNDS_KINDS", "MessageCorpus", "control_samples", "fuzz_job", "record_corpus"]

assert joined_device  # it registers the messages of the pipeline loop

ATTACKER, PEER = "d-1", "d-2"
_MOST_PER_TYPE = 6
_NOT_SENT = (messages.Message, messages.Bulky, messages.Joined, messages.Lost)  # base classes, and the world's events
ROUNDS_KINDS: tuple[type[Message], ...] = tuple(
    kind for name in messages.__all__ if isinstance(kind := getattr(messages, name), type) and kind not in _NOT_SENT
)
_ROUNDS = 12


class MessageCorpus(NamedTuple):
    """Messages by who receives them; every type that occurred is there a few times."""

    to_coordinator: tuple[Message, ...]
    to_device: tuple[Message, ...]


def fuzz_job(loop: str, rounds: int = 10**9) -> Job:
    """A tiny job of `rounds`, `duplex` rounds or a `pipeline`, by default without an end."""
    data = {"kind": "synthetic", "train": 60, "test": 8}
    tables: dict[str, Any] = {
        "recipe": {"rounds": "sync-sgd", "duplex": "duplex", "pipeline": "ftpipehd"}[loop],
        "task": {"model": "mlp", "data": data, "options": {"hidden": [4, 4]}},
        "fleet": {"devices": [{"name": "d", "count": 4, "flops": "1 GFLOP/s"}], "lease": "1 h"},
        "stop": {"rounds": rounds},
        "evaluate": 0,
        "checkpoint": 0,
    }
    if loop == "pipeline":
        sources = [f"d-{number}" for number in range(4)]
        cuts = {"kind": "cuts", "after": [0, 1]}
        pipeline = {"batch": 8, "sources": sources, "patience": "1 h", "evaluation": "pipeline", "partition": cuts}
        tables |= {"pipeline": pipeline, "evaluate": 5}
    else:
        tables["rounds"] = {"batching": {"kind": "fixed", "size": 4}, "patience": "1 h"}
    return make(tables)


@cache
def record_corpus(loop: str) -> MessageCorpus:
    """Run the job in the simulated world for a few rounds and keep the messages, a few of each type."""
    seen: dict[tuple[str, bool], list[Message]] = {}
    original = SimulatedWorld.send_message

    def record_message(world: Any, node: Any, to: str, message: Message) -> Any:
        kept = seen.setdefault((type(message).__name__, to == COORDINATOR), [])
        if len(kept) < _MOST_PER_TYPE:
            kept.append(message)
        return original(world, node, to, message)

    with patch.object(SimulatedWorld, "send_message", record_message):
        potluck.simulate(fuzz_job(loop, _ROUNDS), threads=0)
    names = {name for name, _ in seen}
    kinds = pipeline_messages.KINDS if loop == "pipeline" else ROUNDS_KINDS
    extras = [_plain_message(kind) for kind in kinds if kind.__name__ not in names]
    return MessageCorpus(
        (*(message for (_, up), kept in seen.items() if up for message in kept), *extras),
        (*(message for (_, up), kept in seen.items() if not up for message in kept), *extras),
    )


def _plain_message(kind: type[msgspec.Struct]) -> Any:
    """A message that no such run needs, with small numbers."""
    return kind(
        **{
            field.name: _plain_value(msgspec.inspect.type_info(field.type))
            for field in msgspec.structs.fields(kind)
            if field.required
        }
    )


def _plain_value(kind: msgspec.inspect.Type) -> Any:
    match kind:
        case msgspec.inspect.BoolType():
            return False
        case msgspec.inspect.IntType():
            return 1
        case msgspec.inspect.FloatType():
            return 0.5
        case msgspec.inspect.StrType():
            return PEER
        case msgspec.inspect.DictType():
            return {}
        case msgspec.inspect.StructType(cls=struct) if struct is Payload:
            return Payload(8, (np.zeros(2, np.float32),))
        case msgspec.inspect.ListType():
            return []
    return ()


def control_samples(turns: int = 3) -> tuple[control.ControlMessage, ...]:
    """One message of every kind of the transport's own, and journal records as a device writes them."""
    fields = {"round": 3, "bytes": 1200, "layers": [0, 2]}
    records: list[Span | Instant | Scalar] = [
        Span(ATTACKER, "compute", 1.0, 2.0, {**fields, "samples": 4}),
        Instant(ATTACKER, "stream", 1.5, {"waiting": 3}),
        Scalar(ATTACKER, "share", 1.5, 0.5, {"round": 3}),
    ]
    samples: list[control.ControlMessage] = [
        control.JournalBatch(records),
        control.JournalBatch(records[:1] * turns),
        control.DeviceHeartbeat(True),
        control.ChunksReceived(1, 2),
        control.ChunksMissing(1, [0, 1]),
        control.TransferAborted(1),
        control.TransferDeclined(1, "too much"),
        control.LeaveNotice("interrupted"),
        control.LeaveNotice("failed: it broke", True, "Traceback"),
        control.CoordinatorHeartbeat(3),
        control.RunStarted(12.5),
        control.Roster(7, {ATTACKER: 1, PEER: 1}),
        control.ExpelNotice(0, "lost"),
        control.RunEnded("over"),
    ]
    kinds = [getattr(control, name) for name in control.__all__ if name != "ControlMessage"]
    known = {type(sample) for sample in samples}
    return (*samples, *(_plain_message(kind) for kind in kinds if kind not in known))

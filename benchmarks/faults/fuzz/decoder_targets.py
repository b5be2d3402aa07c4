"""Decoders and readers alone: frames, offers, chunks, handshakes, tokens, journal lines and records of streams."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.faults.fuzz.fuzz_corpus import ATTACKER, control_samples, record_corpus
from benchmarks.faults.fuzz.fuzz_findings import FuzzFindings
from benchmarks.faults.fuzz.mutation import Mutator
from potluck.data.streams.stream_records import RecordRefusals, SampleSpec, StreamSample, pack_record, unpack_record
from potluck.journal import Instant, JournalTotals, Scalar, Span, read_journal
from potluck.loops.messages import Bulky
from potluck.loops.run_progress import RunProgress
from potluck.model import weights_file
from potluck.run.resume_point import CheckpointMetadata, find_resume_point
from potluck.worlds.live import handshake_messages, key_expressions, wire_format
from potluck.worlds.live.chunked_transfer import Reassembly
from potluck.worlds.live.control_messages import JournalBatch
from potluck.worlds.live.device_records import record_refusal
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRefused, JoinRequest
from potluck.worlds.live.security.admission_policy import AdmissionPolicy

__all__ = ["DecoderTarget", "decoder_targets"]

_LIMIT_BYTES = 1 << 20
_LINES = 200  # of a journal that are read at once
_Record = Span | Instant | Scalar
_decode_record = msgspec.msgpack.Decoder(_Record).decode
_decode_line = msgspec.json.Decoder(_Record).decode
_encode_line = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class DecoderTarget:
    """A function that takes bytes, and valid inputs of it."""

    name: str
    samples: Sequence[bytes]
    decode: Callable[[bytes], object]
    is_msgpack: bool = True  # so that values inside can be changed
    slow: bool = False

    def feed(self, count: int, generator: random.Random, findings: FuzzFindings) -> int:
        """Feed that many mutated inputs, or a tenth if it is slow; returns how many were fed."""
        mutator, samples = Mutator(generator), self.samples
        count = -(-count // 10) if self.slow else count
        for _ in range(count):
            sample = samples[generator.randrange(len(samples))]
            if self.is_msgpack and generator.getrandbits(1):
                data = mutator.mutate_values(sample)
            else:
                data = mutator.mutate_bytes(sample, samples[generator.randrange(len(samples))])
            try:
                self.decode(data)
            except Exception as error:
                findings.add_error(error, data)
        return count


def decoder_targets(folder: Path) -> list[DecoderTarget]:
    """All of them; `folder` is for files."""
    messages = [*record_corpus("rounds").to_coordinator, *record_corpus("pipeline").to_coordinator]
    messages += [*record_corpus("rounds").to_device, *record_corpus("pipeline").to_device]
    frames = [wire_format.encode_frame(1, 0, message) for message in messages if not isinstance(message, Bulky)]
    frames += [wire_format.encode_frame(1, 0, message) for message in control_samples()]
    offers = [
        wire_format.encode_offer(1, 0, 5, message, wire_format.arrays_to_send(message.payload), 1 << 16)
        for message in messages
        if isinstance(message, Bulky)
    ]
    return [
        DecoderTarget("frame", frames, wire_format.decode_frame),
        DecoderTarget("offer", offers, _open_transfer),
        DecoderTarget("chunk header", [wire_format.encode_chunk(1, 5, 0, b"abc")], _decode_header, is_msgpack=False),
        *_handshake_targets(folder),
        *_journal_targets(folder),
        *_stream_targets(),
        _checkpoint_target(folder),
    ]


def _open_transfer(data: bytes) -> None:
    reassembly = Reassembly(wire_format.decode_offer(data, _LIMIT_BYTES))
    reassembly.missing_chunks()


def _decode_header(data: bytes) -> None:
    wire_format.decode_chunk(data, b"abc")


def _handshake_targets(folder: Path) -> list[DecoderTarget]:
    policy = AdmissionPolicy.for_run(folder, "fuzz", [ATTACKER], None)
    now = datetime.now(UTC)
    token = policy.issue_token(now + timedelta(hours=9))
    accepted = JoinAccepted(
        run="fuzz", era="e", name=ATTACKER, incarnation=1, job="", digest="d", model="m", seed=0, lease=1.0,
        limit_bytes=10,
    )  # fmt: skip
    answers: list[JoinAccepted | JoinRefused] = [accepted, JoinRefused(reason="no", retry_s=1.0)]
    key = key_expressions.liveliness_key("fuzz.1", ATTACKER, 3).encode()
    return [
        DecoderTarget(
            "join request",
            [handshake_messages.encode_handshake(JoinRequest(name=ATTACKER, token=token, body="s"))],
            handshake_messages.decode_join_request,
        ),
        DecoderTarget(
            "join answer", [*map(handshake_messages.encode_handshake, answers)], handshake_messages.decode_join_answer
        ),
        DecoderTarget(
            "join token",
            [token.encode()],
            lambda data: policy.refusal_reason(ATTACKER, data.decode("utf-8", "replace"), now, "s"),
            is_msgpack=False,
        ),
        DecoderTarget(
            "liveliness key",
            [key],
            lambda data: key_expressions.parse_liveliness_key(data.decode("utf-8", "replace")),
            is_msgpack=False,
        ),
    ]


# --- journal ---------------------------------------------------------------------------------------------------------


class _UnreadableRecordError(Exception):
    """The journal would hold a line that cannot be read."""


def _journal_targets(folder: Path) -> list[DecoderTarget]:
    batches = [sample for sample in control_samples() if isinstance(sample, JournalBatch)]
    records = [record for batch in batches for record in batch.records]
    totals = JournalTotals()

    def accept_record(data: bytes) -> None:
        """As the coordinator does with a device's record: what it accepts must be readable and countable."""
        try:
            record = _decode_record(data)
        except (msgspec.DecodeError, ValueError, OverflowError, RecursionError):
            return
        if record_refusal(record, ATTACKER, 10.0) is None:
            totals.add_record(record)
            line = _encode_line(record)
            try:
                _decode_line(line)
            except msgspec.DecodeError as error:
                raise _UnreadableRecordError(f"{error}: {line[:200]!r}") from None

    pending: list[bytes] = []

    def read_lines(data: bytes) -> None:
        """A journal with damaged lines is read, or refused in one sentence."""
        pending.append(data.replace(b"\n", b"") + b"\n")
        if len(pending) >= _LINES:
            path = folder / "journal.jsonl"
            path.write_bytes(b"".join(pending))
            pending.clear()
            for _ in read_journal(path):
                pass

    return [
        DecoderTarget("journal record", [msgspec.msgpack.encode(record) for record in records], accept_record),
        DecoderTarget("journal line", [_encode_line(record) for record in records], read_lines, is_msgpack=False),
    ]


def _checkpoint_target(folder: Path) -> DecoderTarget:
    """A damaged checkpoint is passed over when a run is resumed."""
    metadata = msgspec.json.encode(CheckpointMetadata(1.0, 0, RunProgress()))
    path = weights_file.write_checkpoint(folder / "checkpoints", 1, {"weight": torch.ones(3)}, metadata.decode())

    def read_damaged(data: bytes) -> None:
        path.write_bytes(data)
        find_resume_point(folder, keep_training=True)

    return DecoderTarget("checkpoint", [path.read_bytes()], read_damaged, is_msgpack=False, slow=True)


# --- streams ---------------------------------------------------------------------------------------------------------


def _stream_targets() -> list[DecoderTarget]:
    labelled = SampleSpec.labelled((2, 3), "f4", 4)
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    refusals = RecordRefusals()

    def unpack(spec: SampleSpec) -> Callable[[bytes], Any]:
        return lambda data: unpack_record(data, spec, refusals)

    nested = SampleSpec(labelled.inputs, (labelled.inputs[0],))
    return [
        DecoderTarget("stream record", [pack_record(StreamSample(values, 2, 5.0))], unpack(labelled)),
        DecoderTarget("nested stream record", [pack_record(StreamSample(values, values, 5.0))], unpack(nested)),
    ]

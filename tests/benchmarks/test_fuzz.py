"""Mutated messages through every decoder and handler: a small fuzz run, and that it would find something."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from benchmarks.faults.fuzz.decoder_targets import decoder_targets
from benchmarks.faults.fuzz.fuzz_corpus import ROUNDS_KINDS, control_samples, record_corpus
from benchmarks.faults.fuzz.fuzz_findings import FuzzFindings
from benchmarks.faults.fuzz.fuzz_run import run_fuzz
from benchmarks.faults.fuzz.mutation import Mutator
from potluck.loops.pipeline.messages import KINDS
from potluck.loops.rounds import RoundsCoordinator
from potluck.worlds.live import control_messages, wire_format
from potluck.worlds.live.chunk_layout import ArraySpec
from potluck.worlds.live.device_records import DeviceRecords
from potluck.worlds.live.wire_format import WireError

INPUTS = 12_000


@pytest.fixture(scope="module")
def corpus_types() -> Counter[str]:
    recorded = [message for loop in ("rounds", "duplex", "pipeline") for message in sum(record_corpus(loop), ())]
    return Counter(type(message).__name__ for message in recorded)


def test_no_mutated_message_raises_anything_but_a_refusal() -> None:
    report = run_fuzz(INPUTS, seed=7)
    assert report.inputs >= INPUTS
    assert [(found.target, found.error, found.where, found.example) for found in report.findings] == []
    assert len(report.by_target) >= 16


def test_the_corpus_has_messages_of_every_type(corpus_types: Counter[str]) -> None:
    assert {kind.__name__ for kind in KINDS} <= corpus_types.keys()
    assert {kind.__name__ for kind in ROUNDS_KINDS} <= corpus_types.keys()
    assert len(ROUNDS_KINDS) >= 11
    assert corpus_types["Activation"] > 1, "the pipeline has stages"
    names = {type(message).__name__ for message in control_samples()}
    assert names == set(control_messages.__all__) - {"ControlMessage"}


@pytest.mark.parametrize("where", ["loop", "records", "decoder"])
def test_an_exception_in_a_handler_is_found(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("broken")

    if where == "loop":
        monkeypatch.setattr(RoundsCoordinator, "_answer_pull", fail)
    elif where == "records":
        monkeypatch.setattr(DeviceRecords, "add_batch", fail)
    else:
        monkeypatch.setattr(wire_format, "decode_chunk", fail)
    report = run_fuzz(3_000, seed=1)
    assert report.exceptions > 0
    assert all("KeyError" in found.error for found in report.findings)


def test_an_absurd_shape_is_found_if_nothing_checks_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArraySpec, "is_addressable", True)
    (offers,) = [target for target in decoder_targets(tmp_path) if target.name == "offer"]
    findings = FuzzFindings()
    offers.feed(50_000, random.Random(1), findings)
    assert ["too big" in found.error for found in findings.findings.values()] == [True]


def test_refusals_are_not_findings() -> None:
    findings = FuzzFindings()
    findings.add_error(WireError("not a frame"))
    findings.add_error(asyncio.CancelledError())
    assert findings.total == 0
    findings.add_error(IndexError("out of range"), b"input")
    findings.add_error(IndexError("out of range"), b"another")
    assert findings.total == 2
    assert [found.example for found in findings.findings.values()] == ["b'input'"]


def test_mutations_follow_the_seed_and_keep_types_where_asked() -> None:
    frame = wire_format.encode_frame(1, 0, control_messages.ChunksReceived(3, 4))
    first, second = (Mutator(random.Random(5)) for _ in range(2))
    assert [first.mutate_bytes(frame) for _ in range(50)] == [second.mutate_bytes(frame) for _ in range(50)]
    kept = [msgspec.msgpack.decode(first.mutate_values(frame, keep_types=True)) for _ in range(200)]
    assert all(type(value) is int for _, _, message in kept for key, value in message.items() if key != "type")
    assert len({str(message) for message in kept}) > 20

"""Copies of layers: version stores, archives, and payloads split into chunks."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.loops.pipeline.message_checks import replica_refusal
from potluck.loops.pipeline.messages import Replica
from potluck.loops.pipeline.model_archive import ModelArchive
from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.loops.pipeline.stage_backend import TimingOnlyStages, join_payload, split_payload
from potluck.loops.pipeline.version_store import VersionStore
from potluck.model.indexed_dataset import MicroBatches
from potluck.payload import Payload


@given(st.integers(1, 9), st.lists(st.integers(0, 20), min_size=1, max_size=4))
def test_chunks_make_up_the_payload(count: int, sizes: list[int]) -> None:
    arrays = tuple(np.arange(size, dtype=np.float32) for size in sizes)
    payload = Payload(sum(array.nbytes for array in arrays), arrays)
    chunks = split_payload(payload, count)
    assert len(chunks) == count
    joined = join_payload(chunks)
    assert joined.nbytes == payload.nbytes
    assert all(np.array_equal(actual, expected) for actual, expected in zip(joined.arrays, arrays, strict=True))


def replica(version: int, index: int, count: int, first: int = 0, last: int = 1) -> Replica:
    return Replica(Payload(10), term=1, first=first, last=last, version=version, made=1, place=index, count=count)


def test_a_copy_is_complete_when_all_chunks_have_arrived_in_any_order() -> None:
    store = VersionStore("a")
    assert store.receive_chunk("b", replica(3, 1, 2)) is None
    assert store.receive_chunk("b", replica(3, 1, 2)) is None
    assert store.receive_chunk("c", replica(3, 0, 2)) is None, "another sender's"
    assert store.receive_chunk("b", replica(3, 0, 2)) is not None


def test_a_version_store_finds_layers_inside_what_it_holds() -> None:
    store = VersionStore("a")
    store.add_version(4, 1, 2, 5, "numbers")
    assert store.find_covering(4, 3, 4) == "numbers"
    assert store.find_exact(4, 3, 4) is None
    assert store.find_covering(5, 3, 4) is None
    store.retain_terms(lambda version, term: term == 2)
    assert store.list_held() == ()


def timing_only_stages(layers: int = 4) -> tuple[TimingOnlyStages, PipelineCosts]:
    costs = PipelineCosts([1.0] * layers, [2.0] * layers, [8.0] * layers, [100] * layers, [4] * layers)
    return TimingOnlyStages(costs, MicroBatches(8, 8)), costs


def test_an_archive_adopts_a_version_when_it_is_complete() -> None:
    stages, _ = timing_only_stages()
    archive = ModelArchive(stages, 4, 0, stages.initial_weights())
    assert not archive.add_layers(2, 1, 0, 1, Payload(1))
    assert archive.version == 0
    assert archive.add_layers(2, 1, 2, 3, Payload(1))
    assert (archive.version, archive.made_in_term) == (2, 1)
    assert not archive.add_layers(1, 1, 0, 3, Payload(1)), "older than what is there"
    assert archive.receive_copy("a", replica(3, 0, 2, last=3)) is None
    assert archive.receive_copy("a", replica(3, 1, 2, last=3)) is True


@pytest.mark.parametrize("moments", [True, False])
def test_timing_only_layers_have_the_bytes_of_real_ones(moments: bool) -> None:
    stages, costs = timing_only_stages()
    weights = stages.initial_weights()
    stage = stages.join_layers(1, 2, [(1, 2, stages.pack_layers(weights, 1, 2))])
    assert stages.pack_layers(stage, 1, 2, moments).nbytes == 200 * (1 + moments) + 8
    passed = stages.forward(stage, None, 0, Payload(64), None)
    assert passed.payload is not None
    assert passed.payload.nbytes == 64
    gradient, onward = stages.backward(passed, Payload(64))
    assert onward.nbytes == 64
    assert stages.pack_step(gradient, None).nbytes == costs.step_bytes(1, 2) == 208


def test_chunks_that_disagree_about_their_number_complete_no_copy() -> None:
    """One chunk of six and one of two were taken for all two, of which the first was missing."""
    store = VersionStore("d0")
    chunk = Replica(Payload(4), term=1, first=0, last=1, version=3, made=1, place=5, count=6)
    assert store.receive_chunk("d1", chunk) is None
    assert store.receive_chunk("d1", msgspec.structs.replace(chunk, place=1, count=2)) is None


def test_a_copy_of_absurdly_many_chunks_is_refused() -> None:
    copy = Replica(Payload(4), term=1, first=0, last=1, version=3, made=1, place=0, count=2**40)
    assert replica_refusal(copy, 4) is not None

"""Chunks of copies as a broken or hostile device may send them: any count, any position, in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from potluck.loops.pipeline.message_checks import replica_refusal
from potluck.loops.pipeline.messages import Replica
from potluck.loops.pipeline.version_store import VersionStore
from potluck.payload import Payload


def _chunk(place: int, count: int, version: int = 3, first: int = 0, last: int = 1) -> Replica:
    return Replica(
        Payload(place % 1000), term=1, first=first, last=last, version=version, made=1, place=place, count=count
    )


def test_chunks_that_disagree_about_their_count_do_not_complete_a_copy() -> None:
    store = VersionStore("pi")
    assert store.receive_chunk("jet", _chunk(5, 6)) is None
    assert store.receive_chunk("jet", _chunk(0, 2)) is None
    assert store.receive_chunk("jet", _chunk(1, 2)) == [Payload(0), Payload(1)]


_numbers = st.one_of(st.integers(-2, 4), st.sampled_from([2**20, 2**20 + 1, 2**31, 2**63 - 1, -(2**63)]))


@given(st.lists(st.builds(_chunk, *[_numbers] * 5), max_size=30))
def test_any_chunks_are_refused_or_stored(replicas: list[Replica]) -> None:
    store = VersionStore("pi")
    for replica in replicas:
        if replica_refusal(replica, layers=3) is None:
            chunks = store.receive_chunk("jet", replica)
            assert chunks is None or len(chunks) == replica.count

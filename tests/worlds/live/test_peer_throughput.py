"""Chunk size, window and timeouts follow the observed throughput."""

from __future__ import annotations

import math

import pytest

from potluck.worlds.live.peer_throughput import PeerThroughput


def _after(nbytes: int, pause: float, times: int = 20) -> PeerThroughput:
    now_s = [0.0]
    throughput = PeerThroughput(lambda: now_s[0])
    throughput.start_timing()
    for _ in range(times):
        now_s[0] += pause
        throughput.record_confirmed(nbytes)
    return throughput


def test_defaults_before_the_first_observation() -> None:
    assert PeerThroughput().chunk_bytes() == 64 << 10
    assert PeerThroughput().status_timeout_s(0.0) == 0.5


@pytest.mark.parametrize(
    ("rate", "chunk_bytes"), [(1e9, 1 << 20), (5e6, 500_000), (125e3, 16 << 10)], ids=["fast", "wifi", "1 Mbit/s"]
)
def test_a_chunk_takes_a_tenth_of_a_second_within_bounds(rate: float, chunk_bytes: int) -> None:
    assert _after(int(rate), 1.0).chunk_bytes() == chunk_bytes


@pytest.mark.parametrize(
    ("rate", "chunks"),
    [(1e9, 16), (12e6, 8), (10.5e6 * 12, 12), (125e3, 8)],
    ids=["fast", "lan", "mid", "slow"],
)
def test_the_window_is_larger_on_a_fast_link(rate: float, chunks: int) -> None:
    assert _after(int(rate), 1.0).window_chunks(1 << 20) == chunks
    assert PeerThroughput().window_chunks(1 << 20) == 8


def test_less_may_be_unconfirmed_on_a_slow_link() -> None:
    assert _after(1_000_000, 1.0).bytes_ahead() == pytest.approx(50_000)
    assert PeerThroughput().bytes_ahead() == math.inf


def test_the_timeout_follows_the_longest_pause_and_grows_with_silence() -> None:
    slow = _after(1 << 20, 2.0)
    assert slow.status_timeout_s(0.0) == 8.0
    assert [slow.status_timeout_s(silent) for silent in (8.0, 16.0, 500.0)] == [8.0, 16.0, 60.0]
    assert _after(1 << 20, 0.01).status_timeout_s(0.0) == 0.5


def test_the_time_between_two_messages_is_not_counted() -> None:
    now_s = [0.0]
    throughput = PeerThroughput(lambda: now_s[0])
    now_s[0] = 1000.0
    throughput.start_timing()
    now_s[0] = 1001.0
    throughput.record_confirmed(500_000)
    assert throughput.chunk_bytes() == 50_000
    assert throughput.status_timeout_s(0.0) == 4.0


def test_confirmations_that_arrive_together_are_no_fast_link() -> None:
    now_s = [0.0]
    throughput = PeerThroughput(lambda: now_s[0])
    throughput.start_timing()
    for index in range(40):  # 2.5 MB/s, in pairs a millisecond apart
        now_s[0] += 0.199 if index % 2 else 0.001
        throughput.record_confirmed(250_000)
    assert throughput.bytes_ahead() == pytest.approx(2.5e6 * 0.05, rel=0.15)

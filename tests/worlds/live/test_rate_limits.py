"""Token buckets per source."""

from __future__ import annotations

from potluck.worlds.live.rate_limits import RateLimit, RateLimiter


def test_a_source_has_its_burst_and_then_its_rate() -> None:
    limiter = RateLimiter(RateLimit(per_s=10, burst=5))
    assert sum(limiter.take("a", 0.0) for _ in range(100)) == 5
    assert sum(limiter.take("a", 1.0 + step / 100) for step in range(100)) == 14
    assert sum(limiter.take("a", 100.0) for _ in range(100)) == 5


def test_sources_do_not_share() -> None:
    limiter = RateLimiter(RateLimit(per_s=1, burst=1))
    assert limiter.take("a", 0.0)
    assert not limiter.take("a", 0.0)
    assert limiter.take("b", 0.0)


def test_the_number_of_sources_is_bounded() -> None:
    limiter = RateLimiter(RateLimit(per_s=1, burst=1), max_sources=10)
    for number in range(1000):
        limiter.take(str(number), 0.0)
    assert len(limiter._buckets) == 10

"""Too many unfinished connections: the oldest of the busiest address is closed."""

from __future__ import annotations

import pytest

from potluck.worlds.live.connections.pending_connections import PendingConnections, source_of


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_what_counts_as_one_source(host: str, source: str) -> None:
    assert source_of(host) == source


def test_a_source_over_its_limit_loses_its_oldest() -> None:
    pending = PendingConnections(max_total=100, max_per_source=2)
    assert [pending.add("a", number) for number in (1, 2)] == [None, None]
    assert pending.add("a", 3) == 1


def test_the_busiest_source_loses_when_there_are_too_many_in_all() -> None:
    pending = PendingConnections(max_total=4, max_per_source=100)
    for number in range(3):
        pending.add("flood", number)
    pending.add("honest", 10)
    assert pending.add("other", 11) == 0


def test_finished_connections_do_not_count() -> None:
    pending = PendingConnections(max_total=2, max_per_source=2)
    for number in range(100):
        assert pending.add("a", number) is None
        pending.discard("a", number)
        pending.discard("a", number)
    assert len(pending) == 0

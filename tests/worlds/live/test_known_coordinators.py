"""A device looks for its run at all coordinators it has heard of, and never goes back to a former leader."""

from __future__ import annotations

from potluck.worlds.live.handshake_messages import JoinAccepted
from potluck.worlds.live.join_handshake import KnownCoordinators


def accepted(term: int, run: str = "run") -> JoinAccepted:
    return JoinAccepted(
        run=run, era="era", name="d", incarnation=1, job="", digest="", model="", seed=0, lease=1.0, limit_bytes=1,
        term=term,
    )  # fmt: skip


def test_a_leader_of_a_lower_term_is_refused_with_both_terms() -> None:
    known = KnownCoordinators(["tcp/a:1"])
    assert known.check_term(accepted(4)) is None
    assert known.check_term(accepted(4)) is None, "the same leader may be joined again"
    refusal = known.check_term(accepted(3))
    assert refusal is not None
    assert "term 3" in refusal.reason
    assert "term 4" in refusal.reason
    assert refusal.retry_s is not None, "it may be asked again: it may lead later"
    assert known.check_term(accepted(9)) is None


def test_another_run_begins_with_its_own_terms() -> None:
    known = KnownCoordinators(["tcp/a:1"])
    assert known.check_term(accepted(400)) is None
    assert known.check_term(accepted(1, "next")) is None


def test_announced_addresses_are_added_and_forgotten_with_the_run() -> None:
    known = KnownCoordinators(["tcp/a:1"])
    known.add_addresses(["tcp/b:1", "tcp/a:1"])
    known.add_addresses(["tcp/c:1"])
    assert set(known.addresses) == {"tcp/a:1", "tcp/b:1", "tcp/c:1"}
    known.forget_run()
    assert known.addresses == ("tcp/a:1",)


def test_addresses_are_bounded_and_of_the_same_protocol() -> None:
    known = KnownCoordinators(["tls/a:1"])
    known.add_addresses(["tcp/a:2", *(f"tls/b:{port}" for port in range(100))])
    assert known.addresses[0] == "tls/a:1"
    assert len(known.addresses) <= 8
    assert all(address.startswith("tls/") for address in known.addresses)

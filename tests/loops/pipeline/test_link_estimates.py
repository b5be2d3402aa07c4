"""Bandwidths follow what receivers saw; messages that overlap share the receiver's link."""

from __future__ import annotations

import pytest

from potluck.fleet import Fleet
from potluck.loops.node import MeasuredTransfer
from potluck.loops.pipeline.link_estimates import LinkEstimates, ReceptionLog
from potluck.settings import decode_settings

RATE = 1e6
LINK = {"up": f"{RATE} B/s", "down": f"{RATE} B/s", "overhead": "0 s"}


def links_of(count: int = 3) -> LinkEstimates:
    tables = [{"name": f"d{index}", "flops": 10.0, "link": LINK} for index in range(count)]
    return LinkEstimates({each.name: each for each in decode_settings({"devices": tables}, Fleet).members})


def observe(links: LinkEstimates, sender: str, receiver: str, rate: float, times: int = 3) -> bool:
    changes = [links.observe_transfers(receiver, [(sender, 100_000, 100_000 / rate)]) for _ in range(times)]
    return any(changes)


def test_a_link_is_nominal_until_it_is_observed() -> None:
    links = links_of()
    assert links.bandwidth("d0", "d1") == RATE
    assert links.transfer_s("d0", "d1", 5e5) == pytest.approx(0.5)
    assert not observe(links, "d0", "d1", 0.95 * RATE)
    assert links.bandwidth("d0", "d1") == pytest.approx(0.95 * RATE)
    assert links.bandwidth("d1", "d0") == RATE


def test_a_lasting_drop_is_a_change_and_is_followed_at_once() -> None:
    links = links_of()
    observe(links, "d0", "d1", RATE, times=12)
    assert not observe(links, "d0", "d1", RATE / 10, times=1), "one message may be held up"
    assert observe(links, "d0", "d1", RATE / 10, times=2)
    assert links.bandwidth("d0", "d1") == pytest.approx(RATE / 10)


def test_the_device_that_slow_pairs_have_in_common_has_the_slow_link() -> None:
    links = links_of(4)
    for pair in (("d0", "d1"), ("d1", "d2"), ("d2", "d1"), ("d1", "d0")):
        observe(links, *pair, RATE / 50)
    assert links.slow_devices() == {"d1": pytest.approx(1 / 50)}
    assert links.bandwidth("d0", "d2") == RATE
    assert links.bandwidth("d3", "d1") == pytest.approx(RATE / 50)
    links.forget_device("d1")
    assert links.slow_devices() == {}


def test_small_messages_and_unknown_senders_say_nothing() -> None:
    links = links_of()
    assert not links.observe_transfers("d1", [("d0", 10, 1.0), ("nobody", 100_000, 9.0), ("d1", 100_000, 9.0)] * 9)
    assert links.bandwidth("d0", "d1") == RATE


def test_the_largest_message_of_each_sender_is_reported_once() -> None:
    log = ReceptionLog()
    log.record_message("d0", MeasuredTransfer(2000, 0.2), now=1.0)
    log.record_message("d0", MeasuredTransfer(9000, 0.9), now=3.0)
    log.record_message("d2", MeasuredTransfer(5000, 0.5), now=5.0)
    log.record_message("d3", None, now=6.0)
    transfers = log.take_transfers()
    assert [transfer[:2] for transfer in transfers] == [("d0", 9000), ("d2", 5000)]
    assert [seconds for _, _, seconds in transfers] == pytest.approx([0.9, 0.5])
    assert log.take_transfers() == ()


def test_messages_that_arrive_together_share_the_time() -> None:
    log = ReceptionLog()
    log.record_message("d0", MeasuredTransfer(10_000, 2.0), now=10.0)
    log.record_message("d2", MeasuredTransfer(10_000, 2.0), now=10.0)
    assert [seconds for _, _, seconds in log.take_transfers()] == pytest.approx([1.0, 1.0])

"""Bandwidths follow what receivers saw; messages that overlap share the receiver's link."""

from __future__ import annotations

import pytest

from potluck.fleet import Fleet
from potluck.loops.node import MeasuredTransfer
from potluck.loops.pipeline.link_estimates import LinkEstimates, ReceptionLog
from potluck.settings import decode_settings

RATE = 1e6
OVERHEAD_S = 0.001  # of each device's link, as fleet files have it by default
MBIT = 1e6 / 8


def links_of(count: int = 3, rate: float = RATE, overhead_s: float = 0.0) -> LinkEstimates:
    link = {"up": f"{rate} B/s", "down": f"{rate} B/s", "overhead": overhead_s}
    tables = [{"name": f"d{index}", "flops": 10.0, "link": link} for index in range(count)]
    return LinkEstimates({each.name: each for each in decode_settings({"devices": tables}, Fleet).members})


def receive(links: LinkEstimates, nbytes: int, rate: float, emulated_s: float = 0.0, times: int = 9) -> None:
    """Let d1 receive messages of d0 over a link of this rate, which may add an emulated overhead to each."""
    log = ReceptionLog()
    for index in range(times):
        log.record_message("d0", MeasuredTransfer(nbytes, nbytes / rate + emulated_s, emulated_s), now=1000.0 * index)
        links.observe_transfers("d1", log.take_transfers())


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


@pytest.mark.parametrize("emulated_s", [0.0, 2 * OVERHEAD_S], ids=["a real link", "an emulated link"])
@pytest.mark.parametrize("nbytes", [100_000, 400_000, 2_000_000])
@pytest.mark.parametrize(("declared", "true"), [(10, 1000), (1000, 1000), (1000, 10), (10, 0.1)])
def test_the_estimate_is_the_true_rate_whatever_the_fleet_file_says(
    declared: float, true: float, nbytes: int, emulated_s: float
) -> None:
    links = links_of(rate=declared * MBIT, overhead_s=OVERHEAD_S)
    receive(links, nbytes, true * MBIT, emulated_s, times=3)
    assert links.bandwidth("d0", "d1") == pytest.approx(true * MBIT)


def test_a_short_message_is_no_evidence_of_a_slower_link() -> None:
    links = links_of(rate=1000 * MBIT, overhead_s=OVERHEAD_S)
    receive(links, 100_000, 500 * MBIT)  # something else may have delayed it by a millisecond
    assert links.bandwidth("d0", "d1") == 1000 * MBIT


def test_a_short_message_that_a_token_bucket_lets_through_at_once_says_nothing() -> None:
    links = links_of(rate=10 * MBIT, overhead_s=OVERHEAD_S)
    receive(links, 50_000, 10_000 * MBIT)
    assert links.bandwidth("d0", "d1") == 10 * MBIT


def test_a_link_that_short_messages_have_proved_fast_is_followed_when_it_slows_down() -> None:
    links = links_of(rate=1000 * MBIT, overhead_s=OVERHEAD_S)
    for true in (8000, 4000, 1000, 100):
        receive(links, 100_000, true * MBIT)
        assert links.bandwidth("d0", "d1") == pytest.approx(true * MBIT)


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


def test_the_overhead_of_an_emulated_link_is_not_counted_and_may_be_all_there_is() -> None:
    log = ReceptionLog()
    log.record_message("d0", MeasuredTransfer(9000, 0.9, 0.4), now=3.0)
    log.record_message("d2", MeasuredTransfer(9000, 0.4, 0.4), now=5.0)
    transfers = log.take_transfers()
    assert [transfer[:2] for transfer in transfers] == [("d0", 9000)]
    assert transfers[0][2] == pytest.approx(0.5)


def test_messages_that_arrive_together_share_the_time() -> None:
    log = ReceptionLog()
    log.record_message("d0", MeasuredTransfer(10_000, 2.0), now=10.0)
    log.record_message("d2", MeasuredTransfer(10_000, 2.0), now=10.0)
    assert [seconds for _, _, seconds in log.take_transfers()] == pytest.approx([1.0, 1.0])

"""What Zenoh's threads hand to the event loop is bounded, limited and handled in batches."""

from __future__ import annotations

import asyncio
import threading
import time

from potluck.worlds.live.inbound_frames import InboundQueue, SenderFilter
from potluck.worlds.live.key_expressions import BULK, CONTROL


def _filter(members: set[str]) -> tuple[SenderFilter, list[tuple[str, int]]]:
    excess: list[tuple[str, int]] = []
    return SenderFilter(members.__contains__, lambda name, count: excess.append((name, count))), excess


def test_a_member_has_a_generous_limit_and_a_flood_is_reported_once_a_second() -> None:
    senders, excess = _filter({"pi"})
    accepted = sum(senders.accepts("pi", CONTROL) for _ in range(20_000))
    assert 3_000 <= accepted < 10_000
    assert excess[0] == ("pi", 1)
    assert len(excess) <= 2


def test_chunks_do_not_use_up_the_limit_of_control_frames() -> None:
    senders, _ = _filter({"pi"})
    assert sum(senders.accepts("pi", BULK) for _ in range(9_000)) == 9_000
    assert senders.accepts("pi", CONTROL)


def test_a_device_that_does_not_take_part_has_a_small_limit() -> None:
    senders, _ = _filter(set())
    assert sum(senders.accepts("pi", CONTROL) for _ in range(1_000)) < 100


def test_nothing_of_a_blocked_sender_is_accepted_until_it_is_unblocked() -> None:
    senders, excess = _filter({"pi", "jetson"})
    senders.block("pi", 60.0)
    assert not any(senders.accepts("pi", CONTROL) for _ in range(10))
    assert senders.accepts("jetson", CONTROL)
    assert excess == [("pi", 1)]
    senders.unblock("pi")
    assert senders.accepts("pi", CONTROL)


def test_the_coordinator_is_never_limited() -> None:
    senders, _ = _filter(set())
    assert all(senders.accepts("coordinator", BULK) for _ in range(20_000))


def test_dropping_a_frame_is_cheap() -> None:
    senders, _ = _filter({"pi"})
    senders.block("pi", 60.0)
    started = time.process_time()
    for _ in range(100_000):
        senders.accepts("pi", CONTROL)
    assert time.process_time() - started < 2.0


def test_frames_are_handled_in_order_and_others_have_their_turn() -> None:
    async def run() -> tuple[list[int], int]:
        queue, handled, turns = InboundQueue(), [], 0
        for number in range(1_000):
            queue.put_frame("pi", b"", lambda sender, frame, number=number: handled.append(number))  # type: ignore[misc]
        while len(handled) < 1_000:
            await asyncio.sleep(0)
            turns += 1
        return handled, turns

    handled, turns = asyncio.run(run())
    assert handled == list(range(1_000))
    assert turns >= 4


def test_the_queue_of_a_sender_is_bounded_and_others_are_not_affected() -> None:
    async def run() -> list[str]:
        queue, handled = InboundQueue(), list[str]()

        def put_many() -> None:
            for _ in range(50_000):
                queue.put_frame("pi", b"x" * 64, lambda sender, _: handled.append(sender))

        flood = threading.Thread(target=put_many)
        flood.start()
        flood.join()
        queue.put_frame("jetson", b"", lambda sender, _: handled.append(sender))
        while "jetson" not in handled:
            await asyncio.sleep(0)
        return handled

    handled = asyncio.run(run())
    assert handled.count("pi") <= 4_096


def test_dropping_a_sender_forgets_what_waits() -> None:
    async def run() -> list[str]:
        queue, handled = InboundQueue(), list[str]()
        for sender in ("pi", "jetson", "pi"):
            queue.put_frame(sender, b"", lambda sender, _: handled.append(sender))
        queue.drop_sender("pi")
        await asyncio.sleep(0.05)
        return handled

    assert asyncio.run(run()) == ["jetson"]


def test_a_failing_handler_does_not_stop_the_queue() -> None:
    async def run() -> list[str]:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        queue, handled = InboundQueue(), list[str]()
        queue.put("pi", lambda: 1 / 0)
        queue.put("pi", lambda: handled.append("after"))
        await asyncio.sleep(0.05)
        return handled

    assert asyncio.run(run()) == ["after"]

from __future__ import annotations

import asyncio

from potluck.loops.messages import Message, Stop
from potluck.loops.node import Latch, Node, answered
from potluck.worlds.simulated import virtual_clock


def test_callbacks_are_called_once_in_order() -> None:
    latch, calls = Latch(), []
    latch.then(lambda: calls.append(1))
    latch.then(lambda: calls.append(2))
    assert not latch.is_open
    assert calls == []
    latch.open()
    latch.open()
    assert latch.is_open
    assert calls == [1, 2]


def test_a_callback_added_to_an_open_latch_is_called_at_once() -> None:
    latch, calls = Latch(), []
    latch.open()
    latch.then(lambda: calls.append("late"))
    assert calls == ["late"]


def test_a_callback_may_open_another_latch() -> None:
    latch, calls = Latch(), []
    latch.then(lambda: latch.then(lambda: calls.append("inner")))
    latch.open()
    assert calls == ["inner"]


def test_all_waiters_continue_and_those_that_timed_out_do_no_harm() -> None:
    async def scenario() -> list[float]:
        latch, loop = Latch(), asyncio.get_running_loop()
        went_on: list[float] = []

        async def wait() -> None:
            await latch.wait()
            went_on.append(loop.time())

        waiting = [asyncio.ensure_future(wait()) for _ in range(3)]
        await asyncio.sleep(1)
        waiting[1].cancel()
        await asyncio.sleep(1)
        latch.open()
        await asyncio.gather(*waiting, return_exceptions=True)
        await latch.wait()
        return went_on

    assert virtual_clock.run_virtual_time(scenario()) == [2.0, 2.0]


class _CountingNode:
    """A node that only records when it was asked to send."""

    name = "deaf"
    incarnation = 0

    def __init__(self) -> None:
        self.sent: list[float] = []

    def send(self, to: str, message: Message) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        self.sent.append(loop.time())
        done = loop.create_future()
        done.set_result(None)
        return done


def _request_times(opens: float, retry: float, sent: bool) -> tuple[list[float], float]:
    async def scenario() -> tuple[list[float], float]:
        node, reply, loop = _CountingNode(), Latch(), asyncio.get_running_loop()
        loop.call_at(opens, reply.open)
        typed_node: Node = node  # type: ignore[assignment]
        await answered(typed_node, "x", Stop(), reply, retry, sent)
        return node.sent, loop.time()

    return virtual_clock.run_virtual_time(scenario())


def test_a_request_is_repeated_with_growing_pauses_until_it_is_answered() -> None:
    assert _request_times(opens=20.0, retry=2.0, sent=False) == ([0.0, 2.0, 6.0, 14.0], 20.0)


def test_a_request_that_was_sent_already_is_not_sent_at_first() -> None:
    assert _request_times(opens=5.0, retry=2.0, sent=True) == ([2.0], 5.0)


def test_the_pause_does_not_grow_forever() -> None:
    sent, _ = _request_times(opens=1000.0, retry=50.0, sent=False)
    assert sent[:4] == [0.0, 50.0, 110.0, 170.0]


def test_a_request_that_is_answered_already_is_not_sent() -> None:
    async def scenario() -> list[float]:
        node, reply = _CountingNode(), Latch()
        reply.open()
        typed_node: Node = node  # type: ignore[assignment]
        await answered(typed_node, "x", Stop(), reply, 1.0)
        return node.sent

    assert virtual_clock.run_virtual_time(scenario()) == []

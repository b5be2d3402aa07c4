from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.worlds.simulated.compute_pool import ComputePool, PendingResult
from tests.time_limits import within

LONG = 5.0


@contextmanager
def _pool(threads: int, ahead: int = 4, **more: Any) -> Iterator[ComputePool]:
    pool = ComputePool(threads, ahead, **more)
    try:
        with within(LONG):
            yield pool
    finally:
        with within(LONG):
            pool.close()


class _CallRecorder:
    """Functions that record which of them ran, how often, and in which thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begun: list[int] = []
        self.in_background: set[int] = set()

    def function(self, number: int) -> Callable[[], int]:
        def run() -> int:
            with self._lock:
                self.begun.append(number)
                if threading.current_thread() is not threading.main_thread():
                    self.in_background.add(number)
            if number % 5 == 4:
                raise KeyError(number)
            return number * number

        return run


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.floats(0, 9)),
        st.tuples(st.sampled_from(["take", "take", "drop"]), st.integers(0, 30)),
        st.tuples(st.just("pause"), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(actions=ACTS, threads=st.integers(0, 3), ahead=st.integers(1, 4))
def test_any_order_of_submitting_taking_and_discarding(
    actions: list[tuple[str, float]], threads: int, ahead: int
) -> None:
    recorder, all_pending, finished = _CallRecorder(), dict[int, PendingResult](), set[int]()
    with _pool(threads, ahead) as pool:
        count = 0
        for action, value in actions:
            if action == "submit":
                all_pending[count] = pool.submit(recorder.function(count), value)
                count += 1
            elif action == "pause":
                time.sleep(0.0005)
            elif all_pending:
                number = sorted(all_pending)[int(value) % len(all_pending)]
                pending = all_pending.pop(number)
                finished.add(number)
                _take(pending, number) if action == "take" else pending.discard_result()
            assert len(recorder.in_background - finished) <= ahead, "too many results wait"
        for number, pending in sorted(all_pending.items()):
            _take(pending, number)
    assert len(recorder.begun) == len(set(recorder.begun)), "a function ran twice"
    if threads == 0:
        assert not recorder.in_background


def _take(pending: PendingResult, number: int) -> None:
    if number % 5 == 4:
        with pytest.raises(KeyError, match=str(number)):
            pending.take_result()
    else:
        assert pending.take_result() == number * number


@pytest.mark.parametrize("threads", [0, 1, 2, 3])
def test_all_of_many_results_are_computed(threads: int) -> None:
    with _pool(threads, ahead=2) as pool:
        all_pending = [pool.submit(lambda n=n: n, float(-n)) for n in range(300)]  # type: ignore[misc]
        assert [pending.take_result() for pending in all_pending] == list(range(300))


def test_without_threads_nothing_runs_before_it_is_taken() -> None:
    done: list[int] = []
    with _pool(0) as pool:
        pending = pool.submit(lambda: done.append(1), 0.0)
        dropped = pool.submit(lambda: done.append(2), 0.0)
        assert done == []
        pending.take_result()
        dropped.discard_result()
    assert done == [1]


def test_the_earliest_due_runs_first() -> None:
    order: list[str] = []
    release, started = threading.Event(), threading.Event()
    with _pool(1, ahead=9) as pool:
        pool.submit(_held(started, release), 100.0)
        assert started.wait(LONG)
        all_pending = [pool.submit(lambda name=name: order.append(name), due)  # type: ignore[misc]
                   for name, due in (("c", 5.0), ("a", 1.0), ("d", 5.0), ("b", 3.0))]  # fmt: skip
        release.set()
        _until(lambda: len(order) == 4)
        for pending in all_pending:
            pending.take_result()
    assert order == ["a", "b", "c", "d"]


def _held(started: threading.Event, release: threading.Event) -> Callable[[], bool]:
    """A function that signals that it has started and then waits at the gate."""

    def run() -> bool:
        started.set()
        return release.wait(LONG)

    return run


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.0005)


def test_threads_run_ahead_by_a_bounded_number_of_results() -> None:
    recorder = _CallRecorder()
    with _pool(2, ahead=3) as pool:
        all_pending = [pool.submit(recorder.function(5 * n), float(n)) for n in range(10)]
        _until(lambda: len(recorder.begun) == 3)
        time.sleep(0.02)
        assert len(recorder.begun) == 3
        assert all_pending[0].take_result() == 0
        _until(lambda: len(recorder.begun) == 4)
        all_pending[1].discard_result()
        _until(lambda: len(recorder.begun) == 5)
        for pending in all_pending[2:]:
            pending.take_result()


def test_discarding_a_running_function_frees_its_slot_when_it_ends() -> None:
    release, started, other = threading.Event(), threading.Event(), threading.Event()
    with _pool(1, ahead=1) as pool:
        first = pool.submit(_held(started, release), 0.0)
        pool.submit(other.set, 1.0)
        assert started.wait(LONG)
        first.discard_result()
        release.set()
        assert other.wait(LONG)


def test_a_result_that_was_not_started_is_computed_inline() -> None:
    release, started = threading.Event(), threading.Event()
    with _pool(1, ahead=1) as pool:
        slow = pool.submit(_held(started, release), 0.0)
        assert started.wait(LONG)
        assert pool.submit(threading.current_thread, 1.0).take_result() is threading.main_thread()
        release.set()
        slow.take_result()


def test_a_result_is_taken_once() -> None:
    for threads in (0, 2):
        with _pool(threads) as pool:
            pending = pool.submit(lambda: 1, 0.0)
            assert pending.take_result() == 1
            with pytest.raises(AssertionError, match="taken only once"):
                pending.take_result()


def test_discarding_twice_or_after_taking_is_harmless() -> None:
    for threads in (0, 2):
        with _pool(threads, ahead=1) as pool:
            for _ in range(5):
                collected, dropped = pool.submit(lambda: 1, 0.0), pool.submit(lambda: 2, 0.0)
                collected.take_result()
                collected.discard_result()
                dropped.discard_result()
                dropped.discard_result()
            assert pool.submit(lambda: 3, 0.0).take_result() == 3


def test_an_exception_is_raised_where_the_result_is_taken() -> None:
    def burn() -> None:
        raise ZeroDivisionError("burnt")

    for threads in (0, 1):
        with _pool(threads) as pool:
            with pytest.raises(ZeroDivisionError, match="burnt"):
                pool.submit(burn, 0.0).take_result()
            pool.submit(burn, 0.0).discard_result()
            assert pool.submit(lambda: "fine", 0.0).take_result() == "fine"


def test_every_thread_is_prepared() -> None:
    prepared: list[str] = []
    lock = threading.Lock()

    def prepare() -> None:
        with lock:
            prepared.append(threading.current_thread().name)

    with _pool(3, prepare=prepare) as pool:
        pool.submit(lambda: None, 0.0).take_result()
        _until(lambda: len(prepared) == 3)
    assert len(set(prepared)) == 3


def test_closing_ends_the_threads_and_drops_the_rest() -> None:
    before = threading.active_count()
    recorder = _CallRecorder()
    pool = ComputePool(2, max_untaken=1)
    for number in range(0, 100, 5):
        pool.submit(recorder.function(number), float(number))
    with within(LONG):
        pool.close()
    assert threading.active_count() == before
    assert len(recorder.begun) <= 1


def test_taken_or_discarded_results_are_released() -> None:
    import gc
    import weakref

    class Big:
        pass

    with _pool(1, ahead=2) as pool:
        references: list[weakref.ref[Big]] = []

        def make() -> Big:
            big = Big()
            references.append(weakref.ref(big))
            return big

        all_pending = [pool.submit(make, float(n)) for n in range(4)]
        all_pending[0].take_result()
        all_pending[1].take_result()
        all_pending[2].discard_result()
        all_pending[3].take_result()
        _until(lambda: len(references) >= 3)
        del all_pending
        _until(lambda: gc.collect() >= 0 and all(ref() is None for ref in references))

"""Work on its own thread: in order, with errors passed on, and a hang that ends neither the run nor the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial

import pytest

from potluck.worlds.live.throttled_execution import WorkCancelled
from potluck.worlds.live.work_thread import WorkThread


def test_work_runs_in_order_and_errors_arrive() -> None:
    async def scenario() -> None:
        thread, order = WorkThread("test"), list[int]()

        def note(number: int) -> int:
            order.append(number)
            return number

        results = [thread.submit(partial(note, number)) for number in range(5)]
        assert [await result for result in results] == order == [0, 1, 2, 3, 4]

        def fail() -> None:
            raise WorkCancelled

        with pytest.raises(WorkCancelled):
            await thread.submit(fail)
        assert await thread.close(5.0)

    asyncio.run(scenario())


def test_work_that_hangs_is_left_behind() -> None:
    release = threading.Event()

    async def scenario() -> None:
        thread = WorkThread("test")
        hanging = thread.submit(release.wait)
        later = thread.submit(lambda: None)
        later.cancel()
        assert not await thread.close(0.1)
        release.set()
        assert await hanging

    asyncio.run(scenario())


def test_a_process_ends_although_its_work_hangs() -> None:
    program = (
        "import asyncio, time\\n"
        "from potluck.worlds.live.work_thread import WorkThread\\n"
        "async def main():\\n"
        "    thread = WorkThread('test')\\n"
        "    thread.submit(lambda: time.sleep(3600))\\n"
        "    assert not await thread.close(0.1)\\n"
        "asyncio.run(main())\\n"
    )
    subprocess.run([sys.executable, "-c", program.replace("\\n", "\n")], check=True, timeout=60)

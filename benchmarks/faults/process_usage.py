"""Memory and file descriptors of processes over time, from /proc."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

__all__ = ["UsageSample", "UsageSampler", "process_usage"]

_PAGE = os.sysconf("SC_PAGE_SIZE")


class UsageSample(NamedTuple):
    """What a process held at a moment."""

    at: float
    pid: int
    resident_bytes: int
    descriptors: int


def process_usage(pid: int) -> UsageSample | None:
    """None if there is no such process, or nothing is left of it."""
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except (OSError, IndexError):
        return None
    return UsageSample(time.monotonic(), pid, resident, descriptors) if resident else None


class UsageSampler:
    """A context in which the processes that `pids` names are sampled regularly."""

    def __init__(self, pids: Callable[[], Mapping[str, int]], every_s: float = 0.5) -> None:
        self._pids = pids
        self._every_s = every_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="usage-sampler", daemon=True)
        self.samples: dict[str, list[UsageSample]] = {}

    def __enter__(self) -> UsageSampler:
        self._take_samples()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._take_samples()

    def longest_life(self, name: str) -> list[UsageSample]:
        """The samples of the longest-lived process of that name: a restarted one begins again."""
        samples = self.samples.get(name, [])
        lives: dict[int, list[UsageSample]] = {}
        for sample in samples:
            lives.setdefault(sample.pid, []).append(sample)
        return max(lives.values(), key=len, default=[])

    def most_bytes(self, name: str) -> int:
        return max((sample.resident_bytes for sample in self.samples.get(name, ())), default=0)

    def _sample(self) -> None:
        while not self._done.wait(self._every_s):
            self._take_samples()

    def _take_samples(self) -> None:
        with contextlib.suppress(RuntimeError):  # the fleet changes meanwhile
            for name, pid in self._pids().items():
                if (sample := process_usage(pid)) is not None:
                    self.samples.setdefault(name, []).append(sample)

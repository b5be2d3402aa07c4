"""Feeds a number of inputs to every target in this process, and reports what was not a refusal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.faults.fuzz.decoder_targets import decoder_targets
from benchmarks.faults.fuzz.fuzz_findings import Finding, FuzzFindings, watch_for_exceptions
from benchmarks.faults.fuzz.memory_transport import InlineExecutor, in_memory_transports
from benchmarks.faults.fuzz.runtime_targets import all_runtime_targets
from benchmarks.machine_info import resident_bytes

__all__ = ["FuzzReport", "run_fuzz"]

_SLICE = 500  # inputs to one target before the next one
_RUNTIME_SLICES = 2  # of a runtime for one of every decoder
_SHOW_EVERY_S = 20.0
_WARM_UP = 0.1  # of the inputs, after which memory must not grow


class FuzzReport(msgspec.Struct):
    """What was fed, how fast, and what came of it."""

    inputs: int
    seconds: float
    exceptions: int  # that are not refusals
    findings: list[Finding]
    by_target: dict[str, int]
    warm_bytes: int  # resident after a tenth of the inputs
    end_bytes: int


def run_fuzz(inputs: int, seed: int, *, shows_progress: bool = False) -> FuzzReport:
    """Feed at least that many inputs; the same for the same seed, apart from the timing of threads."""
    import torch

    torch.set_num_threads(1)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # what it would print is counted
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_feed_all(inputs, seed, Path(folder), _show_on_stderr if shows_progress else _show_nothing))


def _show_on_stderr(line: str) -> None:
    print(f"    {line}", file=sys.stderr, flush=True)


def _show_nothing(line: str) -> None:
    pass


async def _feed_all(inputs: int, seed: int, folder: Path, show: Callable[[str], None]) -> FuzzReport:
    generator, findings, fed = random.Random(seed), FuzzFindings(), Counter[str]()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(InlineExecutor(1))
    with in_memory_transports(), watch_for_exceptions(findings, loop):
        decoders, runtimes = decoder_targets(folder), all_runtime_targets(findings, generator, folder)
        started_at, warm_bytes, shown_at = time.monotonic(), 0, time.monotonic()
        while fed.total() < inputs:
            for decoder in decoders:
                findings.target = decoder.name
                fed[decoder.name] += decoder.feed(min(_SLICE, inputs), generator, findings)
            for runtime in runtimes:
                findings.target = runtime.name
                fed[runtime.name] += await runtime.feed(min(_RUNTIME_SLICES * _SLICE, inputs))
            if not warm_bytes and fed.total() >= _WARM_UP * inputs:
                warm_bytes = resident_bytes()
            if time.monotonic() - shown_at > _SHOW_EVERY_S:
                shown_at = time.monotonic()
                show(f"seed {seed}: {fed.total():,} of {inputs:,} inputs, {findings.total} exceptions")
        seconds, end_bytes = time.monotonic() - started_at, resident_bytes()
        for runtime in runtimes:
            with contextlib.suppress(asyncio.CancelledError):
                await runtime.close()
    kept = list(findings.findings.values())
    return FuzzReport(fed.total(), seconds, findings.total, kept, dict(fed), warm_bytes, end_bytes)

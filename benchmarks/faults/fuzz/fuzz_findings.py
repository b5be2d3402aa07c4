"""What a fuzz run finds: exceptions that are not refusals, each with where it was raised and the input that did it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any
from unittest.mock import patch

import msgspec

from potluck.errors import PotluckError
from potluck.worlds.device_error import DeviceError
from potluck.worlds.live import callback_guard, node_runtime

__all__ = ["Finding", "FuzzFindings", "watch_for_exceptions"]

_INPUT_NAMES = ("data", "envelope", "record", "message", "query")
_MOST_CHARS = 600


class Finding(msgspec.Struct, frozen=True):
    """One kind of exception: what, where, and one input that causes it."""

    target: str
    error: str
    where: str
    example: str


class FuzzFindings:
    """Collects findings; the same exception at the same place is one finding, with a count."""

    def __init__(self) -> None:
        self.target = ""  # that is being fed
        self.counts: Counter[tuple[str, str]] = Counter()  # error type, place
        self.findings: dict[tuple[str, str], Finding] = {}

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def add_error(self, error: BaseException, example: object = None) -> None:
        """Count an exception, unless it is one of ours that says what is wrong: a refusal.

        A DeviceError ends a run in which most devices say that the common code failed, as hostile ones may.
        """
        if isinstance(error, PotluckError | DeviceError | asyncio.CancelledError):
            return
        where = _place_of(error)
        key = type(error).__name__, where
        self.counts[key] += 1
        if key not in self.findings:
            shown = _input_of(error.__traceback__) if example is None else repr(example)
            text = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_CHARS]
            self.findings[key] = Finding(self.target, text, where, shown[:_MOST_CHARS])

    def add_text(self, text: str) -> None:
        """Count an error that is only known from a log."""
        key = "logged", text.strip().splitlines()[-1][:120] if text.strip() else ""
        self.counts[key] += 1
        self.findings.setdefault(key, Finding(self.target, key[1], "", text[:_MOST_CHARS]))


def _place_of(error: BaseException) -> str:
    """The innermost line of the package that the exception passed."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/potluck/" in frame.filename] or frames
    return f"{ours[-1].filename.rpartition('/potluck/')[2]}:{ours[-1].lineno}" if ours else ""


def _input_of(trace: TracebackType | None) -> str:
    """The input, from the variables of the functions that the exception passed."""
    shown = ""
    while trace is not None:
        values = trace.tb_frame.f_locals
        shown = next((repr(values[name]) for name in _INPUT_NAMES if name in values), shown)
        trace = trace.tb_next
    return shown


class _ErrorLog(logging.Handler):
    def __init__(self, findings: FuzzFindings) -> None:
        super().__init__(logging.ERROR)
        self._findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._findings.add_error(error)
        else:
            self._findings.add_text(record.getMessage())


@contextmanager
def watch_for_exceptions(findings: FuzzFindings, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Count what would otherwise only be printed or caught: in callbacks, threads, destructors, handlers, logs."""

    def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None:
            findings.add_error(error)
        else:
            findings.add_text(str(context.get("message")))

    def note_unexpected(error: Exception) -> str:
        """The last resort of a handler, which turns what no check foresaw into a refusal, has caught an exception."""
        findings.add_error(error)
        return original_reason(error)

    original_reason = callback_guard.unexpected_reason
    hooks = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = lambda raised: findings.add_error(raised.exc_value or Exception(str(raised.err_msg)))
    threading.excepthook = lambda raised: findings.add_error(raised.exc_value or Exception("in a thread"))
    log, handler = logging.getLogger("potluck"), _ErrorLog(findings)
    level, propagates = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.ERROR)  # refusals are warnings, and there are millions of them
    log.propagate = False
    loop.set_exception_handler(on_loop_error)
    try:
        with (
            patch.object(callback_guard, "unexpected_reason", note_unexpected),
            patch.object(node_runtime, "unexpected_reason", note_unexpected),
        ):
            yield
    finally:
        loop.set_exception_handler(None)
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagates
        sys.unraisablehook, threading.excepthook = hooks

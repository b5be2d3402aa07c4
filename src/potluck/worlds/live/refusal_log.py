"""Who was turned away, from where and why: in the log and in the journal, and not with every knock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from potluck.journal import Instant, JournalRecord
from potluck.loops.node import COORDINATOR

__all__ = ["RefusalLog", "Refused"]

Refused = Callable[[str, str, str], None]  # who, from where ("" if nobody knows), why

_AGAIN_S = 60.0  # until the same is said again of the same device
_MOST = 256  # kept in mind; names are whatever somebody says, and there is no end to them
_LONGEST = 500

_log = logging.getLogger("potluck")


class RefusalLog:
    """Says each once a minute."""

    def __init__(self, record: Callable[[JournalRecord], None], now: Callable[[], float]) -> None:
        self._record = record
        self._now = now
        self._logged_at: dict[tuple[str, str], float] = {}

    def __call__(self, who: str, where: str, why: str) -> None:
        what = who, why.partition(";")[0]  # behind that it says what to do, and how long to wait
        if time.monotonic() - self._logged_at.get(what, -_AGAIN_S) < _AGAIN_S:
            return
        if len(self._logged_at) >= _MOST:
            self._logged_at.clear()
        self._logged_at[what] = time.monotonic()
        _log.warning("refused %s%s: %s", who[:_LONGEST], f" at {where}" if where else "", why[:_LONGEST])
        fields = {"device": who[:_LONGEST], "from": where, "reason": why[:_LONGEST]}
        self._record(Instant(COORDINATOR, "turned away", self._now(), fields))

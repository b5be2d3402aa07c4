"""Logs refused join requests and writes them to the journal, each at most once a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from potluck.journal import Instant, JournalRecord
from potluck.loops.node import COORDINATOR
from potluck.text_escaping import escape_text

__all__ = ["RefusalLog", "RefusalReporter"]

RefusalReporter = Callable[[str, str, str], None]  # device, address ("" if unknown), reason

_REPEAT_AFTER_S = 60.0  # until the same refusal of the same device is logged again
_MAX_REMEMBERED = 256  # names come from the network, so their number is not bounded
_MAX_LENGTH = 500

_log = logging.getLogger("potluck")


class RefusalLog:
    """Reports a refusal (device, address, reason) unless the same one was reported within the last minute."""

    def __init__(self, record: Callable[[JournalRecord], None], now: Callable[[], float]) -> None:
        self._record = record
        self._now = now
        self._logged_at: dict[tuple[str, str], float] = {}

    def __call__(self, device: str, address: str, reason: str) -> None:
        device, reason = escape_text(device, _MAX_LENGTH), escape_text(reason, _MAX_LENGTH)
        key = device, reason.partition(";")[0]  # what follows is advice and waiting times
        if time.monotonic() - self._logged_at.get(key, -_REPEAT_AFTER_S) < _REPEAT_AFTER_S:
            return
        if len(self._logged_at) >= _MAX_REMEMBERED:
            self._logged_at.clear()
        self._logged_at[key] = time.monotonic()
        _log.warning("refused %s%s: %s", device, f" at {address}" if address else "", reason)
        fields = {"device": device, "from": address, "reason": reason}
        self._record(Instant(COORDINATOR, "turned away", self._now(), fields))

"""By how much this process grows at most while something goes on."""

from __future__ import annotations

import re
import resource
from pathlib import Path

__all__ = ["MemoryGrowth"]

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


class MemoryGrowth:
    """The most of several stretches; on Linux each has a peak of its own, elsewhere only what tops all before shows."""

    def __init__(self) -> None:
        self.most_bytes = 0
        self._before = 0

    def begin_span(self) -> None:
        try:
            _RESET.write_text(_RESET_PEAK)
            self._before = _status_bytes("VmRSS")
        except OSError:
            self._before = _peak_bytes()

    def end_span(self) -> None:
        self.most_bytes = max(self.most_bytes, _peak_bytes() - self._before)


def _peak_bytes() -> int:
    try:
        return _status_bytes("VmHWM")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{_STATUS} does not say {name}")
    return int(found[1]) * 1024

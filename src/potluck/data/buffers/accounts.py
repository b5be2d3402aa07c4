"""Where every sample of a stream went, to the last one."""

from __future__ import annotations

import msgspec

__all__ = ["Account"]


class Account(msgspec.Struct, eq=True):
    """What came in (streamed, received) and where it is now; the two sides are always equal."""

    streamed: int = 0
    received: int = 0  # from other devices
    trained: int = 0
    shared: int = 0  # with other devices
    dropped: int = 0
    buffered: int = 0
    peak: int = 0  # the most that was ever buffered

    @property
    def missing(self) -> int:
        """Samples that nothing accounts for: none, unless there is a bug."""
        return self.streamed + self.received - self.trained - self.shared - self.dropped - self.buffered

    def __add__(self, other: Account) -> Account:
        """Both together; `peak` is then the most that can have been buffered at one moment."""
        return Account(**{key: getattr(self, key) + getattr(other, key) for key in self.__struct_fields__})

    def check(self) -> None:
        assert self.missing == 0, f"{self.missing} samples are unaccounted for: {self}"
        assert min(msgspec.structs.astuple(self)) >= 0, f"a count is negative: {self}"
        assert self.buffered <= self.peak, f"more is buffered than ever was: {self}"

    def came(self, count: int) -> None:
        self.streamed += count
        self.buffered += count

    def lost(self, count: int) -> None:
        """Dropped out of the buffer."""
        self.buffered -= count
        self.dropped += count

    def took(self, count: int) -> None:
        """Taken out of the buffer to be trained on."""
        self.buffered -= count
        self.trained += count

    def gave(self, count: int) -> None:
        """Of what was taken, so many go to other devices instead."""
        self.trained -= count
        self.shared += count

    def gave_up(self, count: int) -> None:
        """Of what was taken, so many were not trained on after all."""
        self.trained -= count
        self.dropped += count

    def got(self, count: int) -> None:
        """From other devices, to be trained on now."""
        self.received += count
        self.trained += count

    def mark(self) -> None:
        """Remember how full the buffer is."""
        self.peak = max(self.peak, self.buffered)

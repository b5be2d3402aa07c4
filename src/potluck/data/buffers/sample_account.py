"""Where every sample of a stream went, to the last one."""

from __future__ import annotations

import msgspec

__all__ = ["SampleAccount"]


class SampleAccount(msgspec.Struct, eq=True):
    """What came in (streamed, received) and where it is now; the two sides are always equal.

    Copies that went to other devices (`shared`) are trained on here as well, so they count on neither side.
    """

    streamed: int = 0
    received: int = 0  # copies from other devices
    trained: int = 0
    shared: int = 0  # copies to other devices
    dropped: int = 0
    buffered: int = 0
    peak: int = 0  # the most that was ever buffered

    @property
    def unaccounted(self) -> int:
        """Samples that nothing accounts for: none, unless there is a bug."""
        return self.streamed + self.received - self.trained - self.dropped - self.buffered

    def __add__(self, other: SampleAccount) -> SampleAccount:
        """Both together; `peak` is then the most that can have been buffered at one moment."""
        return SampleAccount(**{key: getattr(self, key) + getattr(other, key) for key in self.__struct_fields__})

    def check_balance(self) -> None:
        assert self.unaccounted == 0, f"{self.unaccounted} samples are unaccounted for: {self}"
        assert min(msgspec.structs.astuple(self)) >= 0, f"a count is negative: {self}"
        assert self.buffered <= self.peak, f"more is buffered than ever was: {self}"

    def count_streamed(self, count: int) -> None:
        self.streamed += count
        self.buffered += count

    def count_dropped(self, count: int) -> None:
        """Dropped out of the buffer."""
        self.buffered -= count
        self.dropped += count

    def count_taken(self, count: int) -> None:
        """Taken out of the buffer to be trained on."""
        self.buffered -= count
        self.trained += count

    def count_given(self, count: int) -> None:
        """So many copies of what was taken go to other devices."""
        self.shared += count

    def count_unused(self, count: int) -> None:
        """Of what was taken, so many were not trained on after all."""
        self.trained -= count
        self.dropped += count

    def count_received(self, count: int) -> None:
        """From other devices, to be trained on now."""
        self.received += count
        self.trained += count

    def update_peak(self) -> None:
        """Remember how full the buffer is."""
        self.peak = max(self.peak, self.buffered)

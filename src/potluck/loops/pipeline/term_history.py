"""Which versions belong to the run as it is told now: a rollback makes the versions after it those of another story.

Version v is the weights after v batches. Each was made in some *term*, the time between two layouts; a rollback to v
takes back what came later, and the same numbers are made again in a new term.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["TermHistory"]


class TermHistory:
    """Terms and the version that each began with."""

    def __init__(self, terms: Sequence[tuple[int, int]] = ()) -> None:
        self._terms = list(terms)  # term, version it began with; both rising

    @property
    def terms(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._terms)

    def begin_term(self, term: int, version: int) -> None:
        """A new term goes on from a version; what was made beyond it counts no more."""
        self._terms = [entry for entry in self._terms if entry[1] < version]
        self._terms.append((term, version))

    def term_that_made(self, version: int) -> int:
        """The term that made a version which counts; 0 for what the run began with."""
        return next((term for term, begun in reversed(self._terms) if begun < version), 0)

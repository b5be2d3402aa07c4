"""A case of the test: a job, a key of it, another value, and what the job comes to."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from potluck.job import make
from potluck.settings import Settings
from tests.every_setting.outcomes import run_outcome
from tests.every_setting.small_jobs import Tables

__all__ = ["Refused", "SettingCase", "cases", "only_long"]


@dataclass(frozen=True)
class Refused:
    """A value that is refused in one line, which contains these words."""

    value: Any
    words: str


@dataclass(frozen=True)
class SettingCase:
    """A key of the settings class at `path` of a job, and another value for it."""

    job: Tables
    path: str
    key: str
    value: Any
    measure: Callable[[Tables], Any] = run_outcome  # what both values are compared by
    runs_by_default: bool = True

    @property
    def owner(self) -> type[Settings]:
        """The settings class that has the key."""
        settings: Any = make(self.job)
        for step in self.path.split(".") if self.path else ():
            settings = settings[int(step)] if step.isdigit() else getattr(settings, step)
        assert isinstance(settings, Settings), f"{self.path} is no table but {settings!r}"
        return type(settings)

    @property
    def name(self) -> str:
        return f"{self.path}.{self.key}".lstrip(".")

    @property
    def is_refused(self) -> bool:
        return isinstance(self.value, Refused)

    def changed_job(self) -> Tables:
        """The job with the other value."""
        job = copy.deepcopy(self.job)
        table: Any = job
        for step in self.path.split(".") if self.path else ():
            if step.isdigit():
                table = table[int(step)]
            else:
                inner = table.get(step, {})
                table[step] = {"kind": inner} if isinstance(inner, str) else inner
                table = table[step]
        value = self.value.value if isinstance(self.value, Refused) else self.value
        table[self.key] = value
        return job


def cases(
    job: Tables, path: str = "", measure: Callable[[Tables], Any] = run_outcome, /, **values: Any
) -> list[SettingCase]:
    """A case for each key of one table of the job."""
    return [SettingCase(job, path, key, value, measure) for key, value in values.items()]


def only_long(given: list[SettingCase]) -> list[SettingCase]:
    """Cases that run with `-m long` only: others by default show the same code, for another kind or place."""
    return [replace(case, runs_by_default=False) for case in given]

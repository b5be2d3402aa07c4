"""The error tree: bad input and disks that stop Potluck, and nothing else.

    Exception
    ├── PotluckError                 every error that Potluck raises on purpose
    │   ├── StorageError (OSError)   a run's folder that cannot be written: full, read-only or gone; exit code 1
    │   └── UserError (ValueError)   bad input: one line that says what is wrong, where, and what to do; exit code 2
    │       ├── SettingError         a key of a job or a fleet, named by its path
    │       ├── ModelError           a model that cannot be built, traced or run
    │       ├── DataError            data that is missing, damaged or does not fit
    │       └── RunError             a run folder that cannot be read or resumed
    │           └── DamagedFileError one of its files, whose content is not what Potluck wrote
    └── PotluckWarning (UserWarning) Potluck continues, but not quite as asked

A device that dies, a link that drops and a round that falls short are not errors: failures of the fleet are journal
records and outcomes (`potluck.loops.run_progress.RunOutcome`). Bugs are assertions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "DamagedFileError",
    "DataError",
    "ModelError",
    "PotluckError",
    "PotluckWarning",
    "RunError",
    "SettingError",
    "StorageError",
    "UserError",
]


class PotluckError(Exception):
    """Every error that Potluck raises on purpose."""


class StorageError(PotluckError, OSError):
    """A run's folder cannot be written. `result` has the trained model if the run came to its end."""

    result: object = None


class UserError(PotluckError, ValueError):
    """Bad input. The message is one line: what is wrong, where, and what to do."""


class SettingError(UserError):
    """A wrong key or value of a job or a fleet, named by its path such as `fleet.devices[2].link.up`."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}" if path else problem)


class ModelError(UserError):
    """A model that cannot be built, traced or run on the data."""


class DataError(UserError):
    """Data that is missing, damaged, or does not fit the model."""


class RunError(UserError):
    """A run folder that cannot be read or resumed."""


class DamagedFileError(RunError):
    """A file of a run's folder whose content is not what Potluck wrote; `remedy` says what then happens or helps."""

    def __init__(self, path: Path, problem: str, remedy: str = "") -> None:
        self.path = path
        self.problem = problem
        super().__init__(
            f"{path} is damaged ({problem}); " + (remedy or f"`potluck resume {path.parent}` sets it aside and goes on")
        )


class PotluckWarning(UserWarning):
    """Potluck continues, but not quite as asked; the command line prints it as one line."""

"""Checks the arguments of the public functions, so that a wrong type is one line and not a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from potluck.errors import SettingError
from potluck.task import Task

__all__ = ["check_folder", "check_task", "check_threads"]


def check_task(task: Any) -> None:
    """Refuse what is not a task."""
    if task is not None and not isinstance(task, Task):
        raise SettingError("task", f"expected a potluck.Task(model, data), got {_describe(task)}")


def check_folder(argument: str, folder: Any) -> Path | None:
    """The folder that an argument names, or None."""
    if folder is None or isinstance(folder, Path):
        return folder
    if not isinstance(folder, str):
        raise SettingError(argument, f"expected the path of a folder, got {_describe(folder)}")
    return Path(folder)


def check_threads(threads: Any) -> None:
    """Refuse what is not a number of threads."""
    if threads is None:
        return
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 0:
        raise SettingError("threads", f"expected a whole number, 0 or more, got {threads!r}")


def _describe(value: Any) -> str:
    text = repr(value)
    return f"a {type(value).__name__}" if len(text) > 40 or "\n" in text else f"{text} ({type(value).__name__})"

"""Says where in the user's own code an error happened, since one line of a message replaces the traceback."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

__all__ = ["describe_user_error", "raised_by_user_code"]

_OWN_FOLDER = str(Path(__file__).parent)
_STANDARD_FOLDER = sysconfig.get_paths()["stdlib"]
_INTERACTIVE = ("<ipython", "<stdin>")  # what a notebook and a Python prompt call their input
_MISTAKES = (AttributeError, NameError, ImportError, NotImplementedError, RecursionError)  # not due to data


def describe_user_error(error: BaseException) -> str:
    """The error's type and first line, and where in the user's own code it happened, if it did there."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
    place = _user_line(error)
    return text if place is None else f"{text} ({place})"


def raised_by_user_code(error: BaseException) -> bool:
    """Whether the user's own code raised it, itself or through Python's standard library.

    A mistake such as `self.layre` is the user's even where a library finds it (`nn.Module` raises the AttributeError).
    """
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, _MISTAKES):
        return any(_is_user_code(filename) for filename in frames)
    while frames and _is_standard_library(frames[-1]):
        frames.pop()
    return bool(frames) and _is_user_code(frames[-1])


def _user_line(error: BaseException) -> str | None:
    """The file and line of the user's own code that the error came from; None if it came from elsewhere."""
    if isinstance(error, SyntaxError) and error.filename and _is_user_code(error.filename):
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_user_code(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _is_user_code(filename: str) -> bool:
    if filename.startswith("<"):
        return filename.startswith(_INTERACTIVE)
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(Path(filename).parts)
    return not (is_installed or filename.startswith(_OWN_FOLDER) or _is_standard_library(filename))


def _is_standard_library(filename: str) -> bool:
    installed = {"site-packages", "dist-packages"} & set(Path(filename).parts)
    return filename.startswith("<frozen ") or (filename.startswith(_STANDARD_FOLDER) and not installed)

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from potluck.atomic_file import write_atomically

# A process that is killed with SIGKILL when it reaches the given call.
KILLED = """
import os, signal, sys
from pathlib import Path
from potluck.atomic_file import write_atomically

step, path = sys.argv[1:]
real, calls = getattr(os, step.split(":")[0]), []

def killed(*arguments):
    calls.append(arguments)
    if len(calls) == int(step.split(":")[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)

setattr(os, step.split(":")[0], killed)
write_atomically(Path(path), b"new" * 1000)
"""


def test_content_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    for content in (b"first, and longer", b"second", b""):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("step", "left"), [("fsync:1", b"old"), ("replace:1", b"old"), ("fsync:2", b"new" * 1000)])
def test_a_killed_process_leaves_the_old_or_the_new_content(step: str, left: bytes, tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    path.write_bytes(b"old")
    ended = subprocess.run([sys.executable, "-c", KILLED, step, str(path)], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert path.read_bytes() == left
    write_atomically(path, b"newest")
    assert path.read_bytes() == b"newest"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_error_leaves_the_old_content_and_no_temporary_file(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "status.json"
    path.write_bytes(b"old")

    def fail(*arguments: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_file_is_synced_before_the_rename_and_the_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(handle: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def note_replace(source: Path, target: Path) -> None:
        steps.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_atomically(tmp_path / "status.json", b"new")
    assert steps == ["file", "rename", "folder"]


def test_a_private_file_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, modes = tmp_path / "key.pem", []
    fsync = os.fsync

    def note_mode(handle: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(handle).st_mode))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note_mode)
    path.write_bytes(b"readable by all")
    path.chmod(0o644)
    write_atomically(path, b"secret", private=True)
    assert modes[0] == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_missing_folder_is_an_error_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "file", b"")

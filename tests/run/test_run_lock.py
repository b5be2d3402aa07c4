"""One process owns a run's folder; the next one takes over when it is dead, and only then."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from benchmarks.faults.successor_race import RaceOutcome, SuccessorRace
from potluck.errors import RunError
from potluck.run import run_lock
from potluck.run.process_identity import ProcessIdentity, process_start_ticks
from potluck.run.run_lock import LOCK_FILE, RunOwner, lock_run, read_owner

HOLD = """
import sys
from pathlib import Path
from potluck.run.run_lock import lock_run
with lock_run(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["flock", "no flock"])
def any_file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no flock":
        monkeypatch.setattr(fcntl, "flock", _refuse_flock)


def _refuse_flock(*arguments: object) -> None:
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


@contextmanager
def held_by_another(folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def _write_owner(folder: Path, **identity: object) -> RunOwner:
    process = msgspec.structs.replace(ProcessIdentity.of_this_process(), **identity)
    owner = RunOwner(process=process, since="2026-01-01 12:00:00", command="potluck serve", key="theirs")
    (folder / LOCK_FILE).write_bytes(msgspec.json.encode(owner))
    return owner


def test_a_living_owner_is_named_and_a_killed_one_replaced(tmp_path: Path, any_file_system: None) -> None:
    with held_by_another(tmp_path) as process:
        for take_over in (False, True):
            with pytest.raises(RunError, match=rf"held by process {process.pid} .* since 20\d\d-.*; stop that first"):
                lock_run(tmp_path, take_over=take_over).__enter__()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / LOCK_FILE).exists()
        with lock_run(tmp_path):
            owner = read_owner(tmp_path)
            assert owner is not None
            assert owner.process.pid == os.getpid()
    assert not list(tmp_path.iterdir())


def test_a_folder_is_held_against_the_same_process_too(tmp_path: Path, any_file_system: None) -> None:
    with lock_run(tmp_path), pytest.raises(RunError, match=f"held by process {os.getpid()}"):
        lock_run(tmp_path).__enter__()


def test_the_folder_is_released_after_an_error(tmp_path: Path, any_file_system: None) -> None:
    with pytest.raises(ZeroDivisionError), lock_run(tmp_path):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_later_process_with_the_same_number_is_not_the_owner(tmp_path: Path, any_file_system: None) -> None:
    _write_owner(tmp_path, born=process_start_ticks(os.getpid()) - 1)
    with lock_run(tmp_path):
        pass


def test_an_owner_from_before_a_restart_of_the_machine_is_dead(tmp_path: Path, any_file_system: None) -> None:
    _write_owner(tmp_path, boot="an earlier one")
    with lock_run(tmp_path):
        pass


def test_another_machine_is_only_replaced_deliberately(tmp_path: Path, any_file_system: None) -> None:
    _write_owner(tmp_path, host="attic", machine="another", boot="another")
    with pytest.raises(RunError, match=r"potluck serve\) on attic since .*cannot be checked from here.*--take-over"):
        lock_run(tmp_path).__enter__()
    with lock_run(tmp_path, take_over=True):
        pass


def test_another_container_is_dead_once_the_kernel_has_released_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_owner(tmp_path, host="container", namespace="pid:[1]")
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", _refuse_flock)
        with pytest.raises(RunError, match="--take-over"):
            lock_run(tmp_path).__enter__()
    with lock_run(tmp_path):
        pass


@pytest.mark.parametrize("content", [b"", b"garbage", b'{"process": 3}', b"\xff\xfe"])
def test_a_lock_that_cannot_be_read_does_not_keep_anyone_out(
    tmp_path: Path, content: bytes, any_file_system: None
) -> None:
    (tmp_path / LOCK_FILE).write_bytes(content)
    with lock_run(tmp_path):
        assert read_owner(tmp_path) is not None


def test_children_of_a_killed_owner_do_not_keep_its_folder(tmp_path: Path) -> None:
    """A forked worker inherits the kernel's lock and may outlive the owner."""
    owner = _write_owner(tmp_path, born=process_start_ticks(os.getpid()) - 1)
    with (tmp_path / LOCK_FILE).open("r+b") as orphan:
        fcntl.flock(orphan, fcntl.LOCK_EX)
        with lock_run(tmp_path):
            assert read_owner(tmp_path) != owner


@pytest.mark.parametrize(("races", "orphaned"), [(50, False), (6, True)], ids=["dead", "dead, a child holds the lock"])
def test_of_several_successors_of_a_dead_owner_only_one_has_the_folder(
    tmp_path: Path, races: int, orphaned: bool
) -> None:
    outcome = SuccessorRace(tmp_path, rivals=2, seed=0).repeat(races, orphaned=orphaned)
    assert outcome == RaceOutcome(races, won=races, shared=0)


@pytest.mark.parametrize("folder_locks", [True, False])
def test_a_successor_is_given_time_to_write_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder_locks: bool
) -> None:
    """It holds the kernel's lock on a file that still names the dead owner; network disks cannot lock a folder."""
    if not folder_locks:
        _lock_files_only(monkeypatch)
    path = tmp_path / LOCK_FILE
    _write_owner(tmp_path, born=process_start_ticks(os.getpid()) - 1)
    with path.open("r+b") as successor:
        fcntl.flock(successor, fcntl.LOCK_EX)
        writing = threading.Timer(0.2, lambda: _write_owner(tmp_path))
        writing.start()
        with pytest.raises(RunError, match=f"held by process {os.getpid()}"):
            lock_run(tmp_path).__enter__()
        writing.join()
        assert os.path.samestat(path.stat(), os.fstat(successor.fileno()))


def _lock_files_only(monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def refuse_folders(file: int, operation: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{file}"):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", refuse_folders)


def test_a_successor_whose_file_was_replaced_meanwhile_does_not_own_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a folder cannot be locked, a successor that was suspended may be overtaken before it writes its name."""
    _write_owner(tmp_path, born=process_start_ticks(os.getpid()) - 1)
    write = run_lock._write_owner

    def be_overtaken(path: Path, handle: int, owner: RunOwner) -> None:
        path.unlink()
        _write_owner(tmp_path)
        write(path, handle, owner)

    monkeypatch.setattr(run_lock, "_write_owner", be_overtaken)
    with pytest.raises(RunError, match=f"held by process {os.getpid()}"):
        lock_run(tmp_path).__enter__()


def test_an_owner_that_was_replaced_stops_writing_and_leaves_the_lock_alone(tmp_path: Path) -> None:
    with lock_run(tmp_path) as lock:
        lock.check_held()
        successor = _write_owner(tmp_path, host="attic", machine="another", boot="another")
        with pytest.raises(RunError, match=r"taken over by process .* on attic"):
            lock.check_held()
    assert read_owner(tmp_path) == successor


def test_a_vanished_folder_is_no_take_over(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with lock_run(folder) as lock:
        (folder / LOCK_FILE).unlink()
        folder.rmdir()
        lock.check_held()


def test_a_run_that_is_not_saved_needs_no_lock() -> None:
    with lock_run(None) as lock:
        lock.check_held()

"""Tells a process from a later one with the same number, and this machine from another that shares a folder with it."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from pathlib import Path

import msgspec

__all__ = ["ProcessIdentity", "process_start_ticks"]


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A process, as another one can recognise it, also on another machine."""

    host: str
    pid: int
    born: int  # in kernel ticks
    machine: str = ""  # outlives a restart
    boot: str = ""  # changes with every restart of the machine; empty where it is unknown
    namespace: str = ""  # of process numbers: containers on one machine have their own

    @staticmethod
    def of_this_process() -> ProcessIdentity:
        return ProcessIdentity(
            host=socket.gethostname(),
            pid=os.getpid(),
            born=process_start_ticks(os.getpid()),
            machine=_machine_digest(),
            boot=_read_line("/proc/sys/kernel/random/boot_id"),
            namespace=_pid_namespace(),
        )

    def is_alive(self) -> bool | None:
        """Whether it runs; None where this process cannot know, because it runs on another machine or container."""
        here = ProcessIdentity.of_this_process()
        same_machine = (self.machine, self.host) == (here.machine, here.host)
        if (self.boot, self.namespace) == (here.boot, here.namespace) and (here.boot or same_machine):
            return process_start_ticks(self.pid) in (self.born, -1)
        if same_machine and self.boot != here.boot:
            return False  # the machine was restarted since
        return None

    def shares_kernel(self) -> bool:
        """Whether it runs on this kernel, perhaps in another container: file locks of one are seen by the other."""
        return bool(self.boot) and self.boot == _read_line("/proc/sys/kernel/random/boot_id")


def process_start_ticks(pid: int) -> int:
    """When a process started, in kernel ticks; 0 if it does not exist, -1 if that is all that is known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) if fields[0] != "Z" else 0
    except (OSError, ValueError, IndexError):
        try:
            os.kill(pid, 0)
        except PermissionError:
            return -1  # alive, and another user's
        except OSError:
            return 0
        return -1  # alive, on a system without /proc


def _machine_digest() -> str:
    """A hash, since the machine's own number is meant to stay on it."""
    number = _read_line("/etc/machine-id") or f"{uuid.getnode():x}"
    return hashlib.sha256(f"potluck {number}".encode()).hexdigest()[:16]


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _read_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""

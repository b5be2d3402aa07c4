"""A virtual environment for each peer, created on first use; Potluck's is the one that this process runs in."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

__all__ = ["OURS", "interpreter"]

OURS = "potluck"
_FOLDER = Path(__file__).resolve().parent


def interpreter(name: str) -> str:
    """The path of the environment's Python."""
    if name == OURS:
        return sys.executable
    environment = _FOLDER / ".venvs" / name
    ready = environment / "ready"
    fingerprint = _fingerprint(name)
    if not ready.exists() or ready.read_text() != fingerprint:
        _create_environment(name, environment)
        ready.write_text(fingerprint)
    return str(environment / "bin" / "python")


def _create_environment(name: str, environment: Path) -> None:
    print(f"creating {environment} (takes minutes, once)", file=sys.stderr, flush=True)
    _run_command([sys.executable, "-m", "venv", str(environment)], name)
    requirements, constraints = _requirement_files(name)
    _run_command(
        [f"{environment}/bin/python", "-m", "pip", "install", "-q", "-r", str(requirements), "-c", str(constraints)],
        name,
    )


def _requirement_files(name: str) -> tuple[Path, Path]:
    folder = _FOLDER / "requirements"
    return folder / f"{name}.txt", folder / f"{name}.constraints.txt"


def _fingerprint(name: str) -> str:
    """Of the requirements, so that the environment is created again when they change."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in _requirement_files(name))).hexdigest()


def _run_command(command: list[str], name: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"cannot create the environment of {name}: {' '.join(command)}\n{done.stderr[-1500:]}")

"""An environment of its own for each peer, made when it is first needed; Potluck's is the one that this runs in."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

__all__ = ["OURS", "interpreter"]

OURS = "potluck"
_HERE = Path(__file__).resolve().parent


def interpreter(name: str) -> str:
    """The Python of this environment."""
    if name == OURS:
        return sys.executable
    place = _HERE / ".venvs" / name
    ready = place / "ready"
    wanted = _fingerprint(name)
    if not ready.exists() or ready.read_text() != wanted:
        _make(name, place)
        ready.write_text(wanted)
    return str(place / "bin" / "python")


def _make(name: str, place: Path) -> None:
    print(f"making {place} (minutes, once)", file=sys.stderr, flush=True)
    _call([sys.executable, "-m", "venv", str(place)], name)
    wanted, pins = _files(name)
    _call([f"{place}/bin/python", "-m", "pip", "install", "-q", "-r", str(wanted), "-c", str(pins)], name)


def _files(name: str) -> tuple[Path, Path]:
    folder = _HERE / "requirements"
    return folder / f"{name}.txt", folder / f"{name}.constraints.txt"


def _fingerprint(name: str) -> str:
    """An environment whose pins have changed is made anew."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in _files(name))).hexdigest()


def _call(command: list[str], name: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the environment of {name} cannot be made: {' '.join(command)}\n{done.stderr[-1500:]}")

"""Runs every frozen job in this process and prints the versions of the libraries and the hashes as JSON.

`record.measure` starts it with what it needs to give the same hashes everywhere.

Everything goes through what users have: `potluck.simulate`, `potluck.resume`, `python -m potluck`, and the files of a
run's folder.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import runpy
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

import potluck
from tests.frozen.jobs import EXPLORED, EXTENDED, FILES, INTERRUPTED, JOBS, extended, interrupted

__all__ = ["Hashes", "hashes_of", "weights_hash"]

Hashes = dict[str, str | None]

# The one field of a summary that is not simulated. A journal has none: it knows simulated time only, and neither
# paths nor versions, so its file is hashed as it is.
_WALL_CLOCK = ("wall_s",)


def hashes_of(folder: Path) -> Hashes:
    """The hashes of what a run left in its folder."""
    summary = json.loads((folder / "summary.json").read_text())
    told = {key: value for key, value in summary.items() if key not in _WALL_CLOCK}
    return {
        "journal": hashlib.sha256((folder / "journal.jsonl").read_bytes()).hexdigest(),
        "weights": weights_hash(folder),
        "summary": hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest(),
    }


def weights_hash(folder: Path) -> str | None:
    """The hash of all weights that a run ended with, by name; None where nothing was trained."""
    files = [path for path in (folder / "model.safetensors", folder / "assembled.safetensors") if path.exists()]
    if not files:
        return None
    digest = hashlib.sha256()
    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                tensor = file.get_tensor(name).contiguous()
                digest.update(f"{path.name} {name} {tensor.dtype} {list(tensor.shape)}\n".encode())
                digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _round_square_roots_exactly() -> None:
    """Replace MKL's square root, whose last digit depends on the processor, by one in double precision."""
    sqrt = torch.sqrt

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        return sqrt(tensor.double()).to(tensor.dtype)

    torch.sqrt = torch.Tensor.sqrt = rounded  # type: ignore[assignment,method-assign]


def _simulate(job: dict[str, Any], *, folder: Path, threads: int) -> None:
    potluck.simulate(job, folder=folder, threads=threads)


def _interrupt(job: dict[str, Any], after: int, *, folder: Path, threads: int) -> None:
    """Run until so many rounds are over, then resume."""
    seen = 0

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1

    first = potluck.simulate(job, folder=folder, threads=threads, watch=count, stopping=lambda: seen >= after)
    assert first.status == "interrupted", f"ended before it was interrupted: {first.reason}"
    potluck.resume(folder, threads=threads)


def _extend(job: dict[str, Any], after: int, *, folder: Path, threads: int) -> None:
    """Run so many rounds, then resume for all of them."""
    potluck.simulate({**job, "stop": {"rounds": after}}, folder=folder, threads=threads)
    potluck.resume(folder, overrides=[f"stop.rounds={job['stop']['rounds']}"], threads=threads)


def _explore(table: str, arguments: tuple[str, ...]) -> Hashes:
    """Run `potluck explore` in this process."""
    before = sys.argv
    sys.argv = ["potluck", "explore", *arguments, "--out", table]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_module("potluck", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"exit code {end.code}: {said.getvalue()}") from None
    finally:
        sys.argv = before
    return {"table": hashlib.sha256(Path(table).read_bytes()).hexdigest()}


def _or_error(work: Callable[..., Hashes], *arguments: Any) -> Hashes:
    """What it came to, or the error that ended it: the other jobs still run."""
    try:
        return work(*arguments)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _all(threads: int) -> dict[str, Hashes]:
    """The hashes of everything, by the names of `jobs.NAMES`."""

    def run(name: str, work: Callable[..., None], *arguments: Any) -> Hashes:
        work(*arguments, folder=Path(name), threads=threads)
        return hashes_of(Path(name))

    hashes = {}
    for table, arguments in EXPLORED.items():
        hashes[table] = _or_error(_explore, table, arguments)
    for name, job in JOBS.items():
        hashes[name] = _or_error(run, name, _simulate, job)
    for name, after in INTERRUPTED.items():
        hashes[interrupted(name)] = _or_error(run, interrupted(name), _interrupt, JOBS[name], after)
    for name, after in EXTENDED.items():
        hashes[extended(name)] = _or_error(run, extended(name), _extend, JOBS[name], after)
    return hashes


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("torch", "numpy", "scikit-learn", "pymoo")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the runs are kept; must be empty or absent")
    parser.add_argument("--threads", type=int, default=1, help="real threads beside the main one")
    options = parser.parse_args()
    # These libraries choose their code by the processor; PyTorch's own convolutions do not.
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    torch.backends.nnpack.set_flags(False)  # type: ignore[no-untyped-call]
    _round_square_roots_exactly()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(options.folder)
    for name, text in FILES.items():
        Path(name).write_text(text)
    json.dump({"versions": _versions(), "jobs": _all(options.threads)}, sys.stdout)


if __name__ == "__main__":
    main()

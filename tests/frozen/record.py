"""Records the hashes of the frozen jobs: `python -m tests.frozen.record` rewrites `hashes.json`.

Only do so when a change of behaviour is meant. To see what moved, keep the runs of both versions and compare their
journals: `python -m tests.frozen.record --keep DIR` runs the jobs in DIR and leaves `hashes.json` as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TypedDict

__all__ = ["HASHES", "Measured", "environment", "measure"]


class Measured(TypedDict):
    """The versions of the libraries that compute, and the hashes of each job."""

    versions: dict[str, str]
    jobs: dict[str, dict[str, str | None]]


HASHES = Path(__file__).parent / "hashes.json"
_ROOT = Path(__file__).parents[2]

# Libraries choose their code by the processor and by the number of cores, and sums then differ in the last digit. With
# these settings, read when a library is loaded, every x86-64 processor runs the same code.
_ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX2_Usable,-FMA_Usable,-FMA4_Usable",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}


def environment() -> dict[str, str]:
    """What a process that runs frozen jobs must be started with; it finds Potluck and these tests where we did."""
    return {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])}


def measure(folder: Path, threads: int = 1) -> Measured:
    """Run all jobs in one fresh process, which keeps them in this folder."""
    command = [sys.executable, "-m", "tests.frozen.runner", str(folder), "--threads", str(threads)]
    ran = subprocess.run(command, cwd=_ROOT, env=environment(), capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"the frozen jobs could not be run:\n{ran.stderr}")
    measured: Measured = json.loads(ran.stdout)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs here and record nothing")
    options = parser.parse_args()
    if options.keep is not None:
        measure(options.keep.absolute())
        return
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder))
    failed = {name: found["error"] for name, found in measured["jobs"].items() if "error" in found}
    if failed:
        sys.exit("nothing recorded, these jobs failed:\n" + "\n".join(f"{name}: {why}" for name, why in failed.items()))
    HASHES.write_text(json.dumps(measured, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

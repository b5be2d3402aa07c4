"""Deaths on this machine: a pipeline of real processes, its workers killed (SIGKILL) one after another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from potluck.bench.pipeline.trial import Trial
from potluck.job import Job, make
from potluck.journal import read
from potluck.loops.node import Node
from potluck.loops.progress import Books
from potluck.run import set_up
from potluck.run.keeper import Keeper
from potluck.run.lab import Crew, free_address
from potluck.run.live import Door, digest, serve
from potluck.worlds.live.security.gate import Gate
from potluck.worlds.live.session import Place

__all__ = ["deaths"]

_APART = 15  # batches
_BATCHES = 80
_FORMING_S = 120.0
WORKERS = ("device-2", "device-1", "device-3")


def deaths() -> dict[str, Any]:
    """Seconds from each kill to its notice, to the new layout, and to the next batch that this one has committed."""
    with TemporaryDirectory(prefix="potluck-bench-") as name:
        folder = Path(name)
        killed = _run(_job(), folder)
        trial = Trial(list(read(folder / "journal.jsonl")))
    return {
        "notice_s": [trial.notice_after(at) for at in killed],
        "flows_s": [trial.flows_after(at) for at in killed],
        "seconds": [trial.further_after(at) for at in killed],
        "rolled_back": trial.rolled_back(),
        "batches": len(trial.commits()),
    }


def _job() -> Job:
    """Four devices that are slow on paper, so that they do not get in each other's way on few cores."""
    return make(
        {
            "task": {
                "model": "mlp",
                "data": {"kind": "synthetic", "train": 400, "test": 50},
                "options": {"hidden": [32] * 7},
            },
            "recipe": "ftpipehd",
            "fleet": {"devices": [{"name": "device", "count": 1 + len(WORKERS), "flops": "5 MFLOP/s"}], "lease": "2 s"},
            "stop": {"rounds": _BATCHES},
            "evaluate": 0,
            "pipeline": {"batch": 16, "adaptation": {"every": 0, "on_change": False, "join": False}},
        }
    )


def _run(job: Job, folder: Path) -> list[float]:
    """Live through it; when each worker was killed."""
    killed: list[float] = []
    keeper = Keeper.fresh(job, folder, None, lambda: False)
    gate = Gate.open(folder, digest(job), [device.name for device in job.fleet.members], None)
    address, tasks = free_address(), list[asyncio.Task[None]]()
    place = Place(listen=(address,), lease=float(job.fleet.lease), direct=True)
    with Crew(job, address, gate, None, crashes=False) as crew:

        def begun(node: Node) -> None:
            tasks.append(asyncio.ensure_future(_kill_all(crew, node, keeper.books, killed)))

        result = serve(set_up(job, None, None), keeper, Door(place, gate, _FORMING_S, act_out=True, begun=begun))
    assert result.status == "done", result.reason
    assert len(killed) == len(WORKERS), "the run was over before all were killed"
    return killed


async def _kill_all(crew: Crew, node: Node, books: Books, killed: list[float]) -> None:
    for number, name in enumerate(WORKERS, 1):
        while books.round < number * _APART:
            await asyncio.sleep(0.005)
        killed.append(node.now())
        crew.kill(name)

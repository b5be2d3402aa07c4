"""What is compared with whom, and what each peer does that Potluck does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from comparison import Case, Comparison, Side
from environments import OURS

from benchmarks.benchmark_figures import Goal
from benchmarks.simulation.simulation_workload import MODELS

__all__ = ["COMPARISONS"]

_BARE = "no devices, links or time; one thread, where the others use every core"
_FLOWER = "runs clients in processes of their own (Ray), on several machines and GPUs; no model of time or links"
_PFL = "one process: runs on several GPUs and machines, has differential privacy; no model of time or links"
_PFL_ALL = "as many processes as we have threads: " + _PFL.partition(": ")[2]
_SUPERLINK = "isolates: every message starts a new process that loads the app anew"
_DDP = "no coordinator: a ring of all workers, which dies with any of them; ours has one, with a link ten times as fast"
_TORCHRUN = "starts the dead worker again, and all others with it, from the last checkpoint; ours goes on without it"


def simulation(quick: bool, folder: Path) -> Sequence[Case]:
    """Clients per second of 100 clients, one SGD step on a batch of 32 each."""
    rounds = {"mlp": 5, "cnn": 1} if quick else {"mlp": 60, "cnn": 4}
    return [_simulation(network, str(rounds[network]), str(folder / f"{network}.pt")) for network in MODELS]


def _simulation(network: str, rounds: str, file: str) -> Case:
    peers = [
        Side("bare loop", "torch", ["bare_loop.py", file, rounds], _BARE),
        Side("Flower", "flower", ["flower_simulation.py", file, rounds], _FLOWER),
        Side("pfl-research", "pfl", ["pfl_simulation.py", file, rounds], _PFL),
        Side("pfl-research on all cores", "pfl", ["pfl_simulation.py", file, rounds, "--all-cores"], _PFL_ALL),
    ]
    ours = Side("Potluck", OURS, ["potluck_simulation.py", "run", network, rounds])
    same = "moved" if network == "mlp" else ""  # the CNN draws its dropout, each side from its own generator
    return Case(MODELS[network].title, ours, peers, "clients_per_s", "/s", more_is_better=True, same=same)


def live(quick: bool, folder: Path) -> Sequence[Case]:
    """Seconds per round of ten devices and a model of 1 MiB, without training."""
    rounds = "3" if quick else "10"  # the same for all; in a full run three turns of it
    ours = Side("Potluck", OURS, ["potluck_live.py", "10", rounds])
    peers = [Side("Flower", "flower", ["flower_live.py", "10", rounds], _SUPERLINK)]
    if not quick:
        asking = "the same, its launcher asking for work every 0.1 s instead of every second"
        peers.append(Side("Flower, asking often", "flower", ["flower_live.py", "10", rounds, "0.1"], asking))
    return [Case("round", ours, peers, "round_s", "s", more_is_better=False, goal=Goal("≥", 10.0))]


def ddp(quick: bool, folder: Path) -> Sequence[Case]:
    """Seconds per iteration of four workers behind links of 100 Mbit/s, CNN of 1.2 M parameters."""
    iterations = "5" if quick else "30"
    peer = Side("DDP", "torch", ["ddp.py", "lead", str(folder / "cnn.pt"), "4", iterations, "100mbit"], _DDP)
    return [
        Case(
            f"iteration, {recipe}",
            Side("Potluck", OURS, ["potluck_links.py", "4", iterations, "100mbit", recipe]),
            [peer],
            "iteration_s",
            "s",
            more_is_better=False,
        )
        for recipe in ("sync-sgd", "dynacomm")
    ]


def elastic(quick: bool, folder: Path) -> Sequence[Case]:
    """Seconds from kill −9 of one of four workers to the next step of the others."""
    kills = "1" if quick else "3"
    ours = Side("Potluck", OURS, ["potluck_elastic.py", "4", kills])
    peer = Side("torchrun", "torch", ["elastic.py", "lead", str(folder / "mlp.pt"), "4", kills], _TORCHRUN)
    return [Case("kill to next step", ours, [peer], "recovery_s", "s", more_is_better=False)]


_SAME = "All sides begin from the same weights and data; with the MLP they end with the same weights, which is checked."
_BUSY = "Sides take turns, and a ratio is formed within a turn, so that what else the machine does falls on all alike."

COMPARISONS = {
    comparison.name: comparison
    for comparison in (
        Comparison("simulation", "clients per second, simulated", simulation, 5, (_SAME, _BUSY)),
        Comparison("live", "overhead of a round of ten live devices", live, 3, (_BUSY,)),
        Comparison("ddp", "synchronous SGD over shaped links", ddp, 3, (_BUSY,)),
        Comparison("elastic", "recovery from the death of a worker", elastic, 3, (_BUSY,)),
    )
}

"""The comparisons: their workloads, the peers, and how each peer differs from Potluck."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.benchmark_figures import Goal
from benchmarks.peers.peer_comparison import Case, Comparison, Side
from benchmarks.peers.peer_environments import OURS
from benchmarks.simulation.simulation_workload import MODELS

__all__ = ["COMPARISONS"]

_BARE = "does not model devices, links or time; one thread, where the others use every core"
_FLOWER = "runs clients in separate processes (Ray), on several machines and GPUs; does not model time or links"
_PFL = "one process: runs on several GPUs and machines, has differential privacy; does not model time or links"
_PFL_ALL = "as many processes as we have threads: " + _PFL.partition(": ")[2]
_SUPERLINK = "isolates clients: every message starts a new process that loads the app"
_INTERVALS_S = "0.3,0.1,0.03"
_FASTEST = (
    "the same, with the fastest of launchers that poll for work every 0.3, 0.1 and 0.03 s instead of every second"
)
_DDP = (
    "no coordinator: a ring of all workers, which fails with any of them; our coordinator has a ten times faster link"
)
_TORCHRUN = "restarts all workers from the last checkpoint; Potluck continues without the killed one"


def simulation_cases(quick: bool, folder: Path) -> Sequence[Case]:
    """Clients per second of 100 clients, one SGD step on a batch of 32 each."""
    rounds = {"mlp": 5, "cnn": 1} if quick else {"mlp": 60, "cnn": 4}
    return [_simulation_case(network, str(rounds[network]), str(folder / f"{network}.pt")) for network in MODELS]


def _simulation_case(network: str, rounds: str, file: str) -> Case:
    peers = [
        Side("bare loop", "torch", ["bare_loop", file, rounds], _BARE),
        Side("Flower", "flower", ["flower_simulation", file, rounds], _FLOWER),
        Side("pfl-research", "pfl", ["pfl_simulation", file, rounds], _PFL),
        Side("pfl-research on all cores", "pfl", ["pfl_simulation", file, rounds, "--all-cores"], _PFL_ALL),
    ]
    ours = Side("Potluck", OURS, ["potluck_simulation", "run", network, rounds])
    same = "moved" if network == "mlp" else ""  # the CNN has dropout, whose random numbers differ between the sides
    return Case(
        MODELS[network].title, ours, peers, "clients_per_s", "/s", more_is_better=True, same=same, workload=network
    )


def live_cases(quick: bool, folder: Path) -> Sequence[Case]:
    """Seconds per round of ten devices and a model of 1 MiB, without training."""
    rounds = "3" if quick else "10"  # per turn, on all sides
    ours = Side("Potluck", OURS, ["potluck_live", "10", rounds])
    peers = [
        Side("Flower", "flower", ["flower_live", "10", rounds], _SUPERLINK),
        Side(
            "Flower, fastest launcher",
            "flower",
            ["flower_live", "10", rounds, "0.1" if quick else _INTERVALS_S],
            _FASTEST,
        ),
    ]
    return [Case("round", ours, peers, "round_s", "s", more_is_better=False, goal=Goal("≥", 10.0))]


def ddp_cases(quick: bool, folder: Path) -> Sequence[Case]:
    """Seconds per iteration of four workers behind links of 100 Mbit/s, CNN of 1.2 M parameters."""
    iterations = "5" if quick else "30"
    peer = Side("DDP", "torch", ["ddp", "lead", str(folder / "cnn.pt"), "4", iterations, "100mbit"], _DDP)
    return [
        Case(
            f"iteration, {recipe}",
            Side("Potluck", OURS, ["potluck_links", "4", iterations, "100mbit", recipe]),
            [peer],
            "iteration_s",
            "s",
            more_is_better=False,
            workload="cnn",
        )
        for recipe in ("sync-sgd", "dynacomm", "duplex")
    ]


def elastic_cases(quick: bool, folder: Path) -> Sequence[Case]:
    """Seconds from the kill −9 of one of four workers to the next step of the others."""
    kills = "1" if quick else "3"
    ours = Side("Potluck", OURS, ["potluck_elastic", "4", kills])
    peer = Side("torchrun", "torch", ["elastic", "lead", str(folder / "mlp.pt"), "4", kills], _TORCHRUN)
    return [Case("kill to next step", ours, [peer], "recovery_s", "s", more_is_better=False, workload="mlp")]


_SAME = "All sides start from the same weights and data; with the MLP they must end with the same weights."
_ALTERNATE = "Sides alternate, and ratios are computed within a turn, so that other load affects all sides."

COMPARISONS = {
    comparison.name: comparison
    for comparison in (
        Comparison("simulation", "clients per second, simulated", simulation_cases, 5, "measured", (_SAME, _ALTERNATE)),
        Comparison("live", "overhead of a round of ten live devices", live_cases, 3, "live", (_ALTERNATE,)),
        Comparison("ddp", "synchronous SGD over shaped links", ddp_cases, 3, "live", (_ALTERNATE,)),
        Comparison("elastic", "recovery from the crash of a worker", elastic_cases, 3, "live", (_ALTERNATE,)),
    )
}

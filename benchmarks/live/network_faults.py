"""A model of 9 MB under kill -9, `ip link down` and dropped packets, with the default lease and unthrottled processes.

Links of 100 Mbit/s are shaped by the kernel, so that a fault hits transfers in progress.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.benchmark import BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_figures import Figure, Goal, figure_of_repeats
from benchmarks.faults.command_process import wait_until
from benchmarks.faults.process_fleet import FleetNetwork, ProcessFleet, pipeline_job, rounds_job
from benchmarks.shaped_network import ShapedNetwork, missing_requirement
from potluck.job import make

__all__ = ["compute_figures", "declare_pieces", "fault_job"]

_PREFIX = "faults"
_DEVICES = 3
_VICTIM = "d-1"
_RATES = ("1gbit", *["100mbit"] * _DEVICES)
_LOSS = 0.02
_TIMEOUT_S = 180.0
_COMMITS = 5  # before a fault, and after the return of the device
_LOOPS = {"rounds": "round without the device", "pipeline": "batch of a new partition"}
_FAULTS = {"kill": "kill -9", "cut": "link down"}
_PROMPT_S = 2.0  # for a recovery, once it is known that a device is gone
_TITLE = "9 MB model, default lease"


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    """Every fault hits a run of its own; repeats alternate between faults."""
    repeats, loss_s = (1, 6.0) if context.quick else (5, 25.0)
    pieces = []
    for repeat in range(repeats):
        pieces += [
            BenchmarkPiece(
                f"{_PREFIX}/{loop}/{fault}/{repeat}", {"loop": loop, "fault": fault, "repeat": repeat},
                partial(_measure_fault, loop, fault), 25.0 if loop == "rounds" else 15.0,
            )
            for loop in (("rounds",) if context.quick else _LOOPS)
            for fault in _FAULTS
        ]  # fmt: skip
        pieces.append(
            BenchmarkPiece(
                f"{_PREFIX}/rounds/loss/{repeat}",
                {"loss": _LOSS, "seconds": loss_s, "repeat": repeat},
                partial(_measure_loss, loss_s),
                15.0 + 2 * loss_s,
            )
        )
    return pieces


def fault_job(loop: str) -> dict[str, Any]:
    """About 9 MB of weights, over the lease that a job has if it says nothing."""
    job = rounds_job(_DEVICES, hidden=2900) if loop == "rounds" else pipeline_job(_DEVICES, width=590)
    fleet = {key: value for key, value in job["fleet"].items() if key != "lease"}
    return {**job, "fleet": fleet}


def _measure_fault(loop: str, fault: str) -> dict[str, Any]:
    """Seconds from a fault to the next commit that does not need the victim, which comes back afterwards."""
    if missing := missing_requirement():
        return {"skipped": missing}
    with _started_fleet(loop) as fleet:
        hit, undo = (fleet.kill, fleet.restart) if fault == "kill" else (fleet.cut, fleet.restore)
        fleet.wait_committed(_COMMITS, _TIMEOUT_S)
        recovered = _recovery_condition(fleet, loop)
        started_at = time.monotonic()
        hit(_VICTIM)
        wait_until(f"a commit without {_VICTIM}", recovered, _TIMEOUT_S)
        seconds = time.monotonic() - started_at
        undo(_VICTIM)
        fleet.wait_committed(fleet.commits.count + _COMMITS, _TIMEOUT_S)
        return {"seconds": seconds, "redone": fleet.commits.redone(), **_committed_wrongly(fleet)}


def _committed_wrongly(fleet: ProcessFleet) -> dict[str, int]:
    return {"lost": fleet.commits.lost(), "doubled": fleet.commits.doubled()}


@contextlib.contextmanager
def _started_fleet(loop: str) -> Iterator[ProcessFleet]:
    with tempfile.TemporaryDirectory(prefix="potluck-faults-") as name, ShapedNetwork(_RATES) as network:
        members, options = FleetNetwork(network), ("--threads", "1")
        with ProcessFleet(Path(name), fault_job(loop), network=members, join_options=options) as fleet:
            yield fleet


def _recovery_condition(fleet: ProcessFleet, loop: str) -> Callable[[], bool]:
    """Whether something was committed without the victim since now."""
    known = len(_read_records(fleet.run))

    def has_recovered() -> bool:
        news = _read_records(fleet.run)[known:]
        if loop == "rounds":
            return any(record["name"] == "round" and _VICTIM not in _participants(record) for record in news)
        partitions = [index for index, record in enumerate(news) if record["name"] == "partition"]
        return bool(partitions) and any(record["name"] == "committed" for record in news[partitions[0] :])

    return has_recovered


def _participants(record: Mapping[str, Any]) -> list[str]:
    return [device for device, _ in record["fields"]["devices"]]


def _read_records(run: Path) -> list[Mapping[str, Any]]:
    """Rounds, committed batches and partitions of the journal so far, without a line that is still being written."""
    journal = run / "journal.jsonl"
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
    names = (b'"name":"round"', b'"name":"committed"', b'"name":"partition"')
    return [msgspec.json.decode(line) for line in lines if any(name in line for name in names)]


def _measure_loss(seconds: float) -> dict[str, Any]:
    """Rounds per second without and with packets dropped on one device's link, in both directions."""
    if missing := missing_requirement():
        return {"skipped": missing}
    with _started_fleet("rounds") as fleet:
        fleet.wait_committed(_COMMITS, _TIMEOUT_S)
        rates = []
        for fraction in (0.0, _LOSS):
            fleet.drop_packets(_VICTIM, fraction)
            start = time.monotonic()
            time.sleep(seconds)
            fleet.wait_committed(fleet.commits.count + 1, _TIMEOUT_S)
            rates.append(fleet.commits.rate(start, time.monotonic()))
        return {"rates": rates, **_committed_wrongly(fleet)}


# --- figures ----------------------------------------------------------------------------------------------------------


def compute_figures(results: Results) -> Iterator[Figure]:
    measured = {name: result for name, result in results.items() if name.startswith(f"{_PREFIX}/")}
    runs = {name: result for name, result in measured.items() if "skipped" not in result}
    if not runs:
        reason = next((str(result["skipped"]) for result in measured.values()), "not measured")
        yield Figure(name=f"{_TITLE}: skipped", unit="", measured=0.0, executed="live", note=reason)
        return
    for loop, what in _LOOPS.items():
        for fault, title in _FAULTS.items():
            hit = [run for name, run in runs.items() if name.startswith(f"{_PREFIX}/{loop}/{fault}/")]
            if hit:
                seconds = [float(run["seconds"]) for run in hit]
                redone = f"; at most {max(run['redone'] for run in hit)} batches redone" if loop == "pipeline" else ""
                name, note = f"{_TITLE}, {title}: time to the next {what}", f"longest {max(seconds):.2f} s{redone}"
                yield figure_of_repeats(
                    name, "s", seconds, executed="live", goal=_recovery_goal(loop, fault), note=note
                )
    losses = [run for name, run in runs.items() if "/loss/" in name]
    if losses:
        ratios = [run["rates"][0] / run["rates"][1] for run in losses]
        name = f"{_TITLE}, {100 * _LOSS:g} % of packets dropped: round time over that without loss"
        yield figure_of_repeats(name, "x", ratios, executed="live", note="on the link of one device, both directions")
    yield from _commit_figures(list(runs.values()))


def _recovery_goal(loop: str, fault: str) -> Goal:
    """The death of a process closes its connections at once; a link that is down is noticed when the lease expires."""
    lease_s = 0.0 if fault == "kill" else float(make(fault_job(loop)).fleet.lease)
    return Goal("≤", lease_s + _PROMPT_S)


def _commit_figures(runs: Sequence[Mapping[str, Any]]) -> Iterator[Figure]:
    for key, title in (("lost", "committed and lost"), ("doubled", "counted twice")):
        total = sum(int(run[key]) for run in runs)
        yield Figure(
            name=f"  rounds and batches {title}, all of these runs", unit="", measured=total, executed="live",
            goal=Goal("≤", 0),
        )  # fmt: skip

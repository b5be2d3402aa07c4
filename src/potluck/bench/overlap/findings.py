"""The figures of the benchmark, from the forecast cases and those that were lived through."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from potluck.bench.experiment import Results
from potluck.bench.figures import Figure, Goal, Published, of_repeats
from potluck.bench.overlap.cases import Case, Row, cut, deviation, gains, largest, lived, of_results, only, rows
from potluck.bench.overlap.forecast import WORKERS
from potluck.bench.overlap.picture import TITLES
from potluck.bench.overlap.workload import BANDWIDTHS, NETWORKS
from potluck.loops.parts.transfer import Duplex

__all__ = ["figures"]

_PAPER = "Cai et al. 2022, IEEE JSAC 40(2), arXiv:2101.07968: MXNet, 8 workers, 4 servers, RTT about 10 ms"
_BASELINES = ("sequential", "layer-by-layer", "ibatch", "mg-wfbp")
_ROUNDING = 1e-12


def figures(results: Results) -> list[Figure]:
    cases = of_results(results)
    return [
        of_repeats(
            "planning time, 152 layers", "ms", results["planning"]["milliseconds"],
            published=Published(11.59, _PAPER), goal=Goal("≤", 0.1),
        ),
        *_cut_figures(cases),
        *_sensitivity_figures(results["other speeds"]),
        _never_above(cases),
        *_speed_up_figures(cases),
        *_duplex_figures(cases),
        *_lived_figures(lived(results)),
        *_device_figures(cases),
    ]  # fmt: skip


def _cut_figures(cases: Sequence[Case]) -> Iterator[Figure]:
    yield _share("largest cut against sequential", largest(cases, "optimal"), 41.92, Goal("≥", 41.9))
    published = {"resnet152": 41.92, "vgg19": 41.10}
    for network, title in NETWORKS.items():
        yield _share(f"  {title}", largest(only(cases, network), "optimal"), published.get(network))
    inception = only(cases, "inception-v4")
    yield _share("  Inception-v4, layer by layer", largest(inception, "layer-by-layer"), 35.25)
    yield _share("  Inception-v4, iBatch", largest(inception, "ibatch"), 24.22)


def _sensitivity_figures(found: Mapping[str, Any]) -> Iterator[Figure]:
    """The speed of the device is our choice, so the ends of what was open to choose are shown too."""
    for end, flops in zip(("slowest", "fastest"), found["flops"], strict=True):
        name = f"  on the {end} device that balances in 1 to 5 Gbit/s"
        yield _share(name, found[end], note=f"{flops / 1e9:.0f} GFLOP/s")


def _never_above(cases: Sequence[Case]) -> Figure:
    above = sum(
        row["iteration_s"]["optimal"] > row["iteration_s"][baseline] * (1 + _ROUNDING)
        for row in rows(cases)
        for baseline in _BASELINES
    )
    compared = sum(1 for _ in rows(cases)) * len(_BASELINES)
    name = f"times that optimal is above a baseline, of {compared}"
    return Figure(name=name, unit="", measured=above, goal=Goal("≤", 0))


def _speed_up_figures(cases: Sequence[Case]) -> Iterator[Figure]:
    """At the top of the range, where the network is fast and the round trips remain."""
    goal = Goal("≥", 7.2)
    for strategy, value in (("optimal", 7.2), ("ibatch", 6.2), ("layer-by-layer", 5.4)):
        found = [WORKERS * case["compute_s"] / case["rows"][-1]["together_s"][strategy] for case in cases]
        yield Figure(
            name=f"8 workers against one alone, {TITLES[strategy]}, mean at 10 Gbit/s", unit="x",
            measured=sum(found) / len(found), published=Published(value, _PAPER),
            goal=goal if strategy == "optimal" else None, note=_extremes(cases, found),
        )  # fmt: skip
    last = [case["rows"][-1] for case in cases]
    same = [WORKERS * row["iteration_s"]["optimal"] / row["together_s"]["optimal"] for row in last]
    name = "8 workers against one with the same link, optimal, least at 10 Gbit/s"
    yield Figure(name=name, unit="x", measured=min(same), goal=goal, note=_extremes(cases, same))
    yield Figure(
        name="lowest bandwidth at which the mean against one alone is 7.2x", unit="Gbit/s",
        measured=_lowest_bandwidth(cases, goal), note="10 Gbit/s is the most favourable of the ten bandwidths",
    )  # fmt: skip


def _lowest_bandwidth(cases: Sequence[Case], goal: Goal) -> float:
    """Infinite where no bandwidth does."""
    for place, bandwidth in enumerate(BANDWIDTHS):
        found = [WORKERS * case["compute_s"] / case["rows"][place]["together_s"]["optimal"] for case in cases]
        if goal.holds(sum(found) / len(found)):
            return float(bandwidth / 1e9)
    return math.inf


def _extremes(cases: Sequence[Case], found: Sequence[float]) -> str:
    low, high = (found.index(pick(found)) for pick in (min, max))
    return ", ".join(
        f"{found[place]:.2f}x {NETWORKS[cases[place]['network']]} batch {cases[place]['batch']}"
        for place in (low, high)
    )


def _duplex_figures(cases: Sequence[Case]) -> Iterator[Figure]:
    yield _share(
        "duplex below optimal where communication ≥ computation, least", min(gains(cases)), goal=Goal("≥", 15.0)
    )
    for network, title in NETWORKS.items():
        own = only(cases, network)
        found = sorted(gains(own))
        largest = own[0]["largest_layer_share"]
        note = f"up to {found[-1]:.1%}; its largest layer has {largest:.0%} of the bytes{_inside(largest)}"
        yield _share(f"  {title}", found[0], note=note)


def _inside(share: float) -> str:
    return " and is cut inside" if Duplex.finest is not None and share > Duplex.finest else ""


def _lived_figures(found: Sequence[Row]) -> Iterator[Figure]:
    """How far rounds in the simulated world are from what was foreseen for them."""
    goal = Goal("≤", 5.0)
    kinds = {
        "cut with a barrier": [row for row in found if row["recipe"] != "duplex" and row["workers"] == 1],
        "duplex": [row for row in found if row["recipe"] == "duplex"],
        f"{WORKERS} workers, optimal, at 10 Gbit/s": [row for row in found if row["workers"] > 1],
    }
    for kind, rows_of in kinds.items():
        note = f"{len(rows_of)} cases"
        if kind == "duplex":
            note += "; a device plans from figures of two digits and tries fewer cuts than the forecast"
        name = f"rounds in the simulated world against the forecast, {kind}, largest deviation"
        yield _share(name, max(map(deviation, rows_of)), goal=goal, note=note)


def _device_figures(cases: Sequence[Case]) -> Iterator[Figure]:
    balances = [case["balance_gbit_s"] for case in cases]
    peaks = [max(case["rows"], key=lambda row: cut(row, "optimal"))["gbit_s"] for case in cases]
    note = f"communication and computation balance from {min(balances):.2f} to {max(balances):.2f} Gbit/s"
    yield Figure(name="speed of the device", unit="GFLOP/s", measured=cases[0]["device_flops"] / 1e9, note=note)
    yield Figure(
        name="bandwidth at which the gain peaks, lowest",
        unit="Gbit/s",
        measured=min(peaks),
        published=Published(1, _PAPER),
    )
    yield Figure(
        name="bandwidth at which the gain peaks, highest",
        unit="Gbit/s",
        measured=max(peaks),
        published=Published(5, _PAPER),
    )


def _share(name: str, share: float, published: float | None = None, goal: Goal | None = None, note: str = "") -> Figure:
    source = None if published is None else Published(published, _PAPER)
    return Figure(name=name, unit="%", measured=100 * share, published=source, goal=goal, note=note)

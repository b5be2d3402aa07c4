"""The `decoupled` benchmark: what a device saves that trains only the groups its classes need, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from potluck.bench.chart import Chart, Series
from potluck.bench.decoupled.training import alone, central, decoupled, federated, unaided
from potluck.bench.decoupled.workload import CASES, QUICK, Case, Cut
from potluck.bench.experiment import Benchmark, Context, Piece, Results
from potluck.bench.figures import Figure, Goal, Published, of_repeats

__all__ = ["BENCHMARK"]

_PAPER = Published(11.8, "Chen and Qin 2020, the most of AlexNet and VGG on CIFAR-10, CIFAR-100 and speech commands")
_WAYS = {"central": central, "decoupled": decoupled, "fedavg": federated, "alone": alone, "unaided": unaided}
_OTHERS = {
    "fedavg": "FedAvg of whole networks",
    "alone": "no harvest, mean of the devices",
    "unaided": "harvested, no device has samples of others",
}
_SEEDS = 3


def pieces(context: Context) -> Sequence[Piece]:
    plan = list(_quick() if context.quick else _full())
    return [
        Piece(
            _name(case, way, seed), _parameters(case, way),
            partial(_WAYS[way], case, context.data, context.seed + seed), _weight(case, way), beside=True,
        )
        for case, way, seed in plan
    ]  # fmt: skip


def _parameters(case: Case, way: str) -> dict[str, Any]:
    """All that a result depends on, beside the seed."""
    kept = case._replace(ms=0.0, federated=0, others=(), unaided=False, calibrated="")
    return {**kept._asdict(), "way": way}


def _quick() -> Iterator[tuple[Case, str, int]]:
    for way in _WAYS:
        yield QUICK, way, 0


def _full() -> Iterator[tuple[Case, str, int]]:
    for case in CASES:
        for seed in range(_SEEDS):
            yield case, "central", seed
            yield case, "decoupled", seed
        for seed in range(case.federated):
            yield case, "fedavg", seed
        yield case, "alone", 0
        if case.unaided:
            yield case, "unaided", 0
        for cut in case.others:
            yield case._replace(cut=cut), "decoupled", 0


def _name(case: Case, way: str, seed: int) -> str:
    cut = case.cut
    if way == "decoupled":
        return f"{case.name}/{way} {cut.depth},{cut.groups},{cut.trunk}/{seed}"
    return f"{case.name}/{way}/{seed}"


def _weight(case: Case, way: str) -> float:
    """About how many seconds: whole networks are dear, and devices see every sample twice."""
    whole = case.ms * 1e-3 * case.rounds * (case.samples or 1500)
    parts = 0.5 * case.passes
    return {"central": 1.0, "fedavg": 2.0, "decoupled": parts, "alone": parts, "unaided": parts}[way] * whole


def figures(results: Results) -> list[Figure]:
    found = [figure for case in _present(results) for figure in _figures_of(case, results)]
    best = max((_saved(case, results) for case in _present(results) if _lost(case, results) <= 0.5), default=0.0)
    return [
        *found,
        Figure(
            name="most times fewer MACs of a device's whole training, at most 0.5 points below central", unit="x",
            measured=best, published=_PAPER, goal=Goal("≥", 11.8),
        ),
    ]  # fmt: skip


def _present(results: Results) -> list[Case]:
    return [case for case in (*CASES, QUICK) if f"{case.name}/central/0" in results]


def _runs(case: Case, way: str, results: Results) -> list[Mapping[str, Any]]:
    names = [_name(case, way, seed) for seed in range(_SEEDS)]
    return [results[name] for name in names if name in results]


def _percent(runs: Sequence[Mapping[str, Any]], key: str = "accuracy") -> list[float]:
    return [100 * run[key] for run in runs]


def _figures_of(case: Case, results: Results) -> Iterator[Figure]:
    ours, whole = _runs(case, "decoupled", results), _runs(case, "central", results)
    first, name = ours[0], case.name
    cut = f"{case.cut.depth} shared layers, {case.cut.groups} groups, trunk {case.cut.trunk}"
    yield Figure(name=f"{name}: MACs of a sample, forward, fewer", unit="x", measured=first["forward"], note=cut)
    yield Figure(name="  of a sample's training step, fewer", unit="x", measured=first["training"])
    yield Figure(
        name="  of a device's whole training, fewer", unit="x", measured=_saved(case, results), goal=Goal("≥", 5.0),
        note=f"{first['samples']:,.0f} samples on a device, {whole[0]['samples']:,.0f} in one place",
    )  # fmt: skip
    yield of_repeats("  accuracy: central", "%", _percent(whole))
    yield of_repeats("  accuracy: harvested, calibrated", "%", _percent(ours, case.calibrated))
    yield of_repeats("  accuracy: harvested, not calibrated", "%", _percent(ours))
    for way, label in _OTHERS.items():
        if runs := _runs(case, way, results):
            yield of_repeats(f"  accuracy: {label}", "%", _percent(runs))
    yield of_repeats("  points below central, calibrated", "pt", _below(case, results), goal=Goal("≤", 0.5))


def _below(case: Case, results: Results) -> list[float]:
    """Seed by seed."""
    ours, whole = _runs(case, "decoupled", results), _runs(case, "central", results)
    pairs = zip(_percent(whole), _percent(ours, case.calibrated), strict=False)
    return [theirs - mine for theirs, mine in pairs]


def _lost(case: Case, results: Results) -> float:
    below = sorted(_below(case, results))
    return below[len(below) // 2]


def _saved(case: Case, results: Results) -> float:
    """Of the whole training: MACs of a step, times the samples that a device goes through."""
    ours, whole = _runs(case, "decoupled", results)[0], _runs(case, "central", results)[0]
    return float(ours["training"] * whole["samples"] / ours["samples"])


def charts(results: Results) -> Sequence[Chart]:
    return [_trade_off(case, results) for case in _present(results)]


def _trade_off(case: Case, results: Results) -> Chart:
    """Accuracy against what is saved, over all cuts that were tried."""
    cuts = [cut for cut in (case.cut, *case.others) if _name(case._replace(cut=cut), "decoupled", 0) in results]
    depths = sorted({(cut.depth, cut.trunk) for cut in cuts})
    series = [_curve(case, [cut for cut in cuts if (cut.depth, cut.trunk) == depth], results) for depth in depths]
    whole = _percent(_runs(case, "central", results))[0]
    return Chart(
        title=case.name, y_label="test accuracy, %", x_label="times fewer MACs of a training step",
        series=series, x_scale="log", marks=[("central", whole)],
    )  # fmt: skip


def _curve(case: Case, cuts: Sequence[Cut], results: Results) -> Series:
    found = sorted(
        (run["training"], 100 * run[case.calibrated])
        for cut in cuts
        for run in _runs(case._replace(cut=cut), "decoupled", results)[:1]
    )
    frozen = ", frozen" if cuts[0].trunk == "frozen" else ""
    return Series(f"s = {cuts[0].depth}{frozen}", [y for _, y in found], [x for x, _ in found])


def needs(context: Context) -> Sequence[str]:
    return sorted({case.data for case in ((QUICK,) if context.quick else CASES)} - {"digits"})


BENCHMARK = Benchmark(
    name="decoupled",
    summary="devices that train the groups of their own classes (Chen and Qin 2020): MACs saved, accuracy harvested",
    pieces=pieces,
    figures=figures,
    charts=charts,
    needs=needs,
    notes=(
        "One device for each group. It holds all samples of its own classes and as many of all others (which other"
        " devices hold too). In a round it passes over them two or three times (see `samples on a device`), FedAvg's"
        " devices once, and central training once over all samples.",
        "MACs are counted layer by layer and equal the FLOP counter's. Training step: forward, gradient of the weights,"
        " gradient of the inputs (not of the first layer's). Whole training: times the samples that a device goes"
        " through in all rounds.",
        "Calibration sees 500 training samples. `no harvest`: each device's own part is asked about all classes. `No"
        " device has samples of others`: what a group tells its classes from is made of its own samples, scrambled.",
        "Schedules are short so that all of it fits into 90 minutes on two cores; central training has the same one.",
    ),
)

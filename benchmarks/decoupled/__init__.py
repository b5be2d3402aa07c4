"""`decoupled`: the benchmark of Chen and Qin (2020): MACs saved by devices that train the groups of their classes only.

Accuracy is compared with central training, FedAvg, and devices that do not collaborate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_catalogue import CATALOGUE
from benchmarks.benchmark_figures import Figure, Goal, PublishedValue, figure_of_repeats
from benchmarks.decoupled.decoupled_training import (
    train_alone,
    train_central,
    train_decoupled,
    train_federated,
    train_without_negatives,
)
from benchmarks.decoupled.decoupled_workload import CASES, QUICK, DecoupledCase, DecoupledCut
from potluck.report.svg_chart import Chart, ChartSeries

__all__ = ["BENCHMARK"]

_PAPER = PublishedValue(
    11.8, "Chen and Qin 2020, the highest of AlexNet and VGG on CIFAR-10, CIFAR-100 and speech commands"
)
_WAYS = {
    "central": train_central,
    "decoupled": train_decoupled,
    "fedavg": train_federated,
    "alone": train_alone,
    "unaided": train_without_negatives,
}
_OTHERS = {
    "fedavg": "FedAvg of whole networks",
    "alone": "no collaboration, mean of the devices",
    "unaided": "assembled, no device has samples of other classes",
}
_SEEDS = 3


def declare_pieces(context: BenchmarkContext) -> Sequence[BenchmarkPiece]:
    plan = list(_quick_plan() if context.quick else _full_plan())
    return [
        BenchmarkPiece(
            _piece_name(case, way, seed), _piece_parameters(case, way),
            partial(_WAYS[way], case, context.data, context.seed + seed), _expected_s(case, way), parallel=True,
        )
        for case, way, seed in plan
    ]  # fmt: skip


def _piece_parameters(case: DecoupledCase, way: str) -> dict[str, Any]:
    """Everything that a result depends on except the seed."""
    relevant = case._replace(ms=0.0, federated=0, others=(), unaided=False, calibrated="")
    return {**relevant._asdict(), "way": way}


def _quick_plan() -> Iterator[tuple[DecoupledCase, str, int]]:
    for way in _WAYS:
        yield QUICK, way, 0


def _full_plan() -> Iterator[tuple[DecoupledCase, str, int]]:
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


def _piece_name(case: DecoupledCase, way: str, seed: int) -> str:
    cut = case.cut
    if way == "decoupled":
        return f"{case.name}/{way} {cut.depth},{cut.groups},{cut.trunk}/{seed}"
    return f"{case.name}/{way}/{seed}"


def _expected_s(case: DecoupledCase, way: str) -> float:
    """Estimated seconds: full networks are expensive, and with groups every sample is on two devices."""
    central_s = case.ms * 1e-3 * case.rounds * (case.samples or 1500)
    grouped = 0.5 * case.passes
    return {"central": 1.0, "fedavg": 2.0, "decoupled": grouped, "alone": grouped, "unaided": grouped}[way] * central_s


def compute_figures(results: Results) -> list[Figure]:
    figures = [figure for case in _present_cases(results) for figure in _case_figures(case, results)]
    best = max(
        (_training_saving(case, results) for case in _present_cases(results) if _median_gap(case, results) <= 0.5),
        default=0.0,
    )
    return [
        *figures,
        Figure(
            name="largest MAC reduction of a device's whole training, at most 0.5 points below central", unit="x",
            measured=best, published=_PAPER, goal=Goal("≥", 11.8),
        ),
    ]  # fmt: skip


def _present_cases(results: Results) -> list[DecoupledCase]:
    return [case for case in (*CASES, QUICK) if f"{case.name}/central/0" in results]


def _case_runs(case: DecoupledCase, way: str, results: Results) -> list[Mapping[str, Any]]:
    names = [_piece_name(case, way, seed) for seed in range(_SEEDS)]
    return [results[name] for name in names if name in results]


def _percentages(runs: Sequence[Mapping[str, Any]], key: str = "accuracy") -> list[float]:
    return [100 * run[key] for run in runs]


def _case_figures(case: DecoupledCase, results: Results) -> Iterator[Figure]:
    ours, central = _case_runs(case, "decoupled", results), _case_runs(case, "central", results)
    first, name = ours[0], case.name
    cut = f"{case.cut.depth} shared layers, {case.cut.groups} groups, trunk {case.cut.trunk}"
    yield Figure(name=f"{name}: MAC reduction, forward pass of a sample", unit="x", measured=first["forward"], note=cut)
    yield Figure(name="  MAC reduction, training step of a sample", unit="x", measured=first["training"])
    yield Figure(
        name="  MAC reduction, whole training of a device",
        unit="x",
        measured=_training_saving(case, results),
        goal=Goal("≥", 5.0),
        note=f"{first['samples']:,.0f} samples on a device, {central[0]['samples']:,.0f} centrally",
    )
    yield figure_of_repeats("  accuracy: central", "%", _percentages(central))
    yield figure_of_repeats("  accuracy: assembled, calibrated", "%", _percentages(ours, case.calibrated))
    yield figure_of_repeats("  accuracy: assembled, not calibrated", "%", _percentages(ours))
    for way, label in _OTHERS.items():
        if runs := _case_runs(case, way, results):
            yield figure_of_repeats(f"  accuracy: {label}", "%", _percentages(runs))
    yield figure_of_repeats(
        "  points below central, calibrated", "pt", _accuracy_gaps(case, results), goal=Goal("≤", 0.5)
    )


def _accuracy_gaps(case: DecoupledCase, results: Results) -> list[float]:
    """Points below central training, per seed."""
    ours, central = _case_runs(case, "decoupled", results), _case_runs(case, "central", results)
    pairs = zip(_percentages(central), _percentages(ours, case.calibrated), strict=False)
    return [theirs - mine for theirs, mine in pairs]


def _median_gap(case: DecoupledCase, results: Results) -> float:
    gaps = sorted(_accuracy_gaps(case, results))
    return gaps[len(gaps) // 2]


def _training_saving(case: DecoupledCase, results: Results) -> float:
    """MAC reduction of the whole training: that of a step, times the ratio of samples processed."""
    ours, central = _case_runs(case, "decoupled", results)[0], _case_runs(case, "central", results)[0]
    return float(ours["training"] * central["samples"] / ours["samples"])


def build_charts(results: Results) -> Sequence[Chart]:
    return [_trade_off_chart(case, results) for case in _present_cases(results)]


def _trade_off_chart(case: DecoupledCase, results: Results) -> Chart:
    """Accuracy over the MAC reduction, for all cuts that were tried."""
    cuts = [cut for cut in (case.cut, *case.others) if _piece_name(case._replace(cut=cut), "decoupled", 0) in results]
    depths = sorted({(cut.depth, cut.trunk) for cut in cuts})
    series = [
        _depth_series(case, [cut for cut in cuts if (cut.depth, cut.trunk) == depth], results) for depth in depths
    ]
    central = _percentages(_case_runs(case, "central", results))[0]
    return Chart(
        title=case.name, y_label="test accuracy, %", x_label="MAC reduction of a training step",
        series=series, x_scale="log", marks=[("central", central)],
    )  # fmt: skip


def _depth_series(case: DecoupledCase, cuts: Sequence[DecoupledCut], results: Results) -> ChartSeries:
    points = sorted(
        (run["training"], 100 * run[case.calibrated])
        for cut in cuts
        for run in _case_runs(case._replace(cut=cut), "decoupled", results)[:1]
    )
    frozen = ", frozen" if cuts[0].trunk == "frozen" else ""
    return ChartSeries(f"s = {cuts[0].depth}{frozen}", [y for _, y in points], [x for x, _ in points])


def required_datasets(context: BenchmarkContext) -> Sequence[str]:
    return sorted({case.data for case in ((QUICK,) if context.quick else CASES)} - {"digits"})


BENCHMARK = Benchmark(
    name="decoupled",
    summary=CATALOGUE["decoupled"].summary,
    pieces=declare_pieces,
    figures=compute_figures,
    charts=build_charts,
    datasets=required_datasets,
    notes=(
        "There is one device per group. It holds all samples of its own classes and as many of other classes (which"
        " other devices hold too). In a round it makes two or three passes over them (see `samples on a device`);"
        " FedAvg's devices make one, and central training makes one over all samples.",
        "MACs are counted layer by layer and agree with PyTorch's FLOP counter. A training step is the forward pass"
        " and the gradients of the weights and of the inputs (except those of the first layer). The whole training is"
        " that times the samples that a device processes in all rounds.",
        "Calibration uses 500 training samples. `No collaboration`: each device's own groups predict all classes. `No"
        " device has samples of other classes`: negatives are generated by scrambling the device's own samples.",
        "Schedules are short so that the benchmark takes 90 minutes on two cores; central training has the same one.",
    ),
)

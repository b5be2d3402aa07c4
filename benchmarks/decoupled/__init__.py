"""`decoupled`: the benchmark of Chen and Qin (2020): MACs saved by devices that train the groups of their classes only.

Accuracy is compared with central training, FedAvg, and devices that do not collaborate.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_catalogue import CATALOGUE
from benchmarks.benchmark_figures import Figure, Goal, PublishedValue, figure_of_repeats, interval_of_repeats
from benchmarks.decoupled.decoupled_training import (
    train_alone,
    train_central,
    train_decoupled,
    train_federated,
    train_without_negatives,
    try_rate,
)
from benchmarks.decoupled.decoupled_workload import CASES, QUICK, RATES, SAVING, DecoupledCase, DecoupledCut
from benchmarks.measured_code import SIMULATED_PACKAGE
from potluck.report.svg_chart import Chart, ChartSeries

__all__ = ["BENCHMARK"]

_PAPER = PublishedValue(
    SAVING, "Chen and Qin 2020, the highest of AlexNet and VGG on CIFAR-10, CIFAR-100 and speech commands"
)
_CLOSE = 0.5  # points below central training
_WAYS = {
    "central": train_central,
    "decoupled": train_decoupled,
    "fedavg": train_federated,
    "alone": train_alone,
    "unaided": train_without_negatives,
}
_RATE_OF = {"central": "central", "fedavg": "fedavg"}  # whose tuned rate a way uses; the others use ours
_RIVALS = {
    "fedavg": "FedAvg of whole networks",
    "alone": "no collaboration, mean of the devices",
    "unaided": "assembled, no device has samples of other classes",
}
_EXTENTS = {"accuracy": "not calibrated", "calibrated readout": "readout calibrated", "calibrated heads": "calibrated"}
_CALIBRATED = "calibrated heads"  # what is compared with central training, decided beforehand
_SEEDS = 3


def declare_pieces(context: BenchmarkContext) -> Sequence[BenchmarkPiece]:
    cases, seeds = ((QUICK,), 1) if context.quick else (CASES, _SEEDS)
    return [
        piece for case in cases for piece in (*_tuning_pieces(case, context), *_training_pieces(case, context, seeds))
    ]


def _tuning_pieces(case: DecoupledCase, context: BenchmarkContext) -> Iterator[BenchmarkPiece]:
    for way in ("central", "decoupled", *(["fedavg"] if case.rivals else [])):
        for lr in RATES:
            yield BenchmarkPiece(
                _rate_name(case, way, lr), {**_piece_parameters(case), "way": way, "lr": lr},
                partial(try_rate, case, way, lr, context.data), 0.5 * _expected_s(case, way), parallel=True,
            )  # fmt: skip


def _training_pieces(case: DecoupledCase, context: BenchmarkContext, seeds: int) -> Iterator[BenchmarkPiece]:
    for variation, way, seed in _training_plan(case, seeds):
        needs = tuple(_rate_name(case, _RATE_OF.get(way, "decoupled"), lr) for lr in RATES)
        yield BenchmarkPiece(
            _piece_name(variation, way, seed), {**_piece_parameters(variation), "way": way, "rates": RATES},
            partial(_train_piece, variation, way, context.data, context.seed + seed), _expected_s(variation, way),
            parallel=True, needs=needs,
        )  # fmt: skip


def _train_piece(case: DecoupledCase, way: str, data: Path | None, seed: int, rates: Results) -> Mapping[str, Any]:
    return _WAYS[way](rates, case, data, seed)


def _training_plan(case: DecoupledCase, seeds: int) -> Iterator[tuple[DecoupledCase, str, int]]:
    for seed in range(seeds):
        yield case, "central", seed
        yield case, "decoupled", seed
    for cut in case.others:
        yield case._replace(cut=cut), "decoupled", 0
    for way in _RIVALS if case.rivals else ():
        yield case, way, 0


def _piece_parameters(case: DecoupledCase) -> dict[str, Any]:
    """Everything that a result depends on except the seed."""
    return case._replace(ms=0.0, goal=0.0, others=(), rivals=False)._asdict()


def _rate_name(case: DecoupledCase, way: str, lr: float) -> str:
    return f"{case.name}/rate of {way}/{lr}"


def _piece_name(case: DecoupledCase, way: str, seed: int) -> str:
    return f"{case.name}/{way} {case.cut.label}/{seed}" if way == "decoupled" else f"{case.name}/{way}/{seed}"


def _expected_s(case: DecoupledCase, way: str) -> float:
    """Estimated seconds of one core: with groups every sample is on two devices, whose networks are small."""
    central_s = case.ms * 1e-3 * case.rounds * (case.samples or _USUAL_SAMPLES.get(case.data, 1500))
    cut = case.cut
    grouped = 0.5 * (cut.passes or 2) * (0.5 + 0.5 * cut.each)
    grouped += case.pretraining_rounds / case.rounds if cut.pretrained else 0.0
    return {"central": 1.0, "fedavg": 2.0}.get(way, grouped) * central_s


_USUAL_SAMPLES = {"cifar10": 50_000, "cifar100": 50_000, "speech-commands": 24_000}


# --- figures ---------------------------------------------------------------------------------------------------------


def compute_figures(results: Results) -> list[Figure]:
    cases = _present_cases(results)
    figures = [figure for case in cases for figure in _case_figures(case, results)]
    near = [
        _training_saving(variation, results)
        for case in cases
        for variation in _variations(case, results)
        if _has_all_seeds(variation, results) and _median_gap(variation, results) <= _CLOSE
    ]
    return [
        *figures,
        Figure(
            name="largest MAC reduction of a device's whole training, at most 0.5 points below central", unit="x",
            measured=max(near, default=0.0), published=_PAPER, goal=Goal("≥", SAVING), executed="simulated",
        ),
    ]  # fmt: skip


def _present_cases(results: Results) -> list[DecoupledCase]:
    return [case for case in (*CASES, QUICK) if f"{case.name}/central/0" in results]


def _variations(case: DecoupledCase, results: Results) -> list[DecoupledCase]:
    """The case with each cut that was tried."""
    cuts = [case._replace(cut=cut) for cut in (case.cut, *case.others)]
    return [variation for variation in cuts if _piece_name(variation, "decoupled", 0) in results]


def _case_runs(case: DecoupledCase, way: str, results: Results) -> list[Mapping[str, Any]]:
    names = [_piece_name(case, way, seed) for seed in range(_SEEDS)]
    return [results[name] for name in names if name in results]


def _percentages(runs: Sequence[Mapping[str, Any]], key: str = "accuracy") -> list[float]:
    return [100 * run[key] for run in runs]


def _case_figures(case: DecoupledCase, results: Results) -> Iterator[Figure]:
    ours, central = _case_runs(case, "decoupled", results), _case_runs(case, "central", results)
    first, name = ours[0], case.name
    yield Figure(
        name=f"{name}: MAC reduction, forward pass of a sample", unit="x", measured=first["forward"],
        note=f"cut {case.cut.label}", executed="counted",
    )  # fmt: skip
    yield Figure(name="  MAC reduction, training step of a sample", unit="x", measured=first["training"],
                 executed="counted")  # fmt: skip
    yield Figure(
        name="  MAC reduction, whole training of a device", unit="x", measured=_training_saving(case, results),
        goal=Goal("≥", SAVING),
        note=f"{first['samples']:,.0f} samples on a device, {central[0]['samples']:,.0f} centrally", executed="counted",
    )  # fmt: skip
    yield figure_of_repeats(
        "  accuracy: central",
        "%",
        _percentages(central),
        goal=Goal("≥", case.goal),
        note=f"rate {central[0]['lr']}",
        executed="simulated",
    )
    for key, how in _EXTENTS.items():
        yield figure_of_repeats(
            f"  accuracy: assembled, {how}", "%", _percentages(ours, key), note=_rate_note(ours), executed="simulated"
        )
    for way, label in _RIVALS.items():
        if runs := _case_runs(case, way, results):
            yield figure_of_repeats(
                f"  accuracy: {label}", "%", _percentages(runs), note=_rate_note(runs), executed="simulated"
            )
    yield figure_of_repeats(
        "  points below central, calibrated",
        "pt",
        _accuracy_gaps(case, results),
        goal=Goal("≤", _CLOSE),
        executed="simulated",
    )
    for variation in _variations(case, results)[1:]:
        run = _case_runs(variation, "decoupled", results)[0]
        yield Figure(
            name=f"  cut {variation.cut.label}: accuracy", unit="%", measured=100 * run[_CALIBRATED],
            note=f"{_training_saving(variation, results):.3g}x fewer MACs in the whole training, one seed",
            executed="simulated",
        )  # fmt: skip


def _rate_note(runs: Sequence[Mapping[str, Any]]) -> str:
    return f"rate {runs[0]['lr']}" if "lr" in runs[0] else ""


def _accuracy_gaps(case: DecoupledCase, results: Results) -> list[float]:
    """Points below central training, per seed."""
    ours, central = _case_runs(case, "decoupled", results), _case_runs(case, "central", results)
    pairs = zip(_percentages(central), _percentages(ours, _CALIBRATED), strict=False)
    return [theirs - mine for theirs, mine in pairs]


def _has_all_seeds(case: DecoupledCase, results: Results) -> bool:
    """The best of many cuts with one seed each would be chosen by chance too."""
    return len(_case_runs(case, "decoupled", results)) == len(_case_runs(case, "central", results))


def _median_gap(case: DecoupledCase, results: Results) -> float:
    gaps = sorted(_accuracy_gaps(case, results))
    return gaps[len(gaps) // 2]


def _training_saving(case: DecoupledCase, results: Results) -> float:
    """MAC reduction of the whole training on one device."""
    ours, central = _case_runs(case, "decoupled", results)[0], _case_runs(case, "central", results)[0]
    return float(central["samples"] * ours["training_macs"][0] / ours["device_macs"])


def build_charts(results: Results) -> Sequence[Chart]:
    return [_trade_off_chart(case, results) for case in _present_cases(results)]


def _trade_off_chart(case: DecoupledCase, results: Results) -> Chart:
    """Accuracy over the MAC reduction of a device's whole training, for all cuts that were tried."""
    variations = _variations(case, results)
    kinds = sorted({_cut_kind(variation.cut) for variation in variations})
    series = [
        _kind_series(kind, [each for each in variations if _cut_kind(each.cut) == kind], results) for kind in kinds
    ]
    central = statistics.fmean(_percentages(_case_runs(case, "central", results)))
    return Chart(
        title=case.name, y_label="test accuracy, %", x_label="MAC reduction of a device's whole training",
        series=series, x_scale="log", marks=[("central", central)],
    )  # fmt: skip


def _cut_kind(cut: DecoupledCut) -> str:
    """What one line of the chart has in common."""
    kind = f"s = {cut.depth}, {cut.trunk}"
    kind += "" if cut.variant == "structural" else f", {cut.variant}"
    return f"{kind}, distilled" if cut.distill else kind


def _kind_series(kind: str, variations: Sequence[DecoupledCase], results: Results) -> ChartSeries:
    """The mean over seeds; a cut that was tried with one seed only has no interval."""
    points = []
    for case in variations:
        accuracies = _percentages(_case_runs(case, "decoupled", results), _CALIBRATED)
        interval = interval_of_repeats(accuracies)
        points.append((_training_saving(case, results), statistics.fmean(accuracies), (interval.low, interval.high)))
    points.sort()
    return ChartSeries(kind, [y for _, y, _ in points], [x for x, _, _ in points], [ends for _, _, ends in points])


def required_datasets(context: BenchmarkContext) -> Sequence[str]:
    cases = (QUICK,) if context.quick else CASES
    return sorted({name for case in cases for name in (case.data, case.pretraining)} - {"", "digits"})


BENCHMARK = Benchmark(
    name="decoupled",
    summary=CATALOGUE["decoupled"].summary,
    pieces=declare_pieces,
    figures=compute_figures,
    charts=build_charts,
    datasets=required_datasets,
    notes=(
        "There is one device per group. It holds all samples of its own classes and as many of other classes (which"
        " other devices hold too); with several groups per device, a group's samples are divided among its devices.",
        "Central training makes one pass over all data in a round. A device makes as many passes over its own as a"
        f" whole training {SAVING} times cheaper than central training allows (`saving`), unless a cut says how many.",
        f"Rates are chosen from {', '.join(map(str, RATES))} for central training, for ours with the case's first cut,"
        " and for FedAvg, all by the same procedure: one seed, half of the rounds, a tenth of the training data held"
        " out, the highest accuracy on that. The other cuts use the rate of the first. A trunk that is pre-trained on"
        " the case's own data has seen the held-out tenth, with every rate.",
        "MACs are counted layer by layer and agree with PyTorch's FLOP counter. A training step is the forward pass"
        " and the gradients of the weights and of the inputs (except those of the first layers). The whole training is"
        " that times the samples that a device processes in all rounds, plus a cached trunk once per sample,"
        " plus the assembled network's forward pass where devices learn from it.",
        "`Frozen` and `cached` trunks come from two rounds of central training on the other of CIFAR-10 and CIFAR-100,"
        " one round on the case's own data for speech commands; attributed groups from the case's own data. This is"
        " done on a machine that can, and not counted. A cached trunk's samples are not augmented.",
        "Calibration uses 500 training samples. `No collaboration`: each device's own groups predict all classes. `No"
        " device has samples of other classes`: negatives are generated by scrambling the device's own samples.",
        "All pieces together are estimated at six hours of one core; each is kept when it is done (`--resume`).",
    ),
    measures=SIMULATED_PACKAGE,
)

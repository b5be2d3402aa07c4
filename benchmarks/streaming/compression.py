"""Compression: volume and accuracy of the paper's rule at each ratio and threshold, and of our codecs both ways."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import potluck
from benchmarks.benchmark import BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_figures import Figure, Goal, figure_of_repeats
from benchmarks.streaming import scadles_testbed
from potluck import seeds
from potluck.job import Job, make
from potluck.journal import Span, read_journal
from potluck.model.codecs import TopKCodec
from potluck.report.svg_chart import Chart, ChartSeries

__all__ = [
    "CIFAR",
    "CODECS",
    "DIGITS",
    "CodecCase",
    "CodecWorkload",
    "build_charts",
    "compressed_job",
    "compute_figures",
    "declare_pieces",
    "measure_codec",
    "measure_compression",
    "time_compression",
]

RATIOS = (0.1, 0.01)
DELTAS = (0.1, 0.2, 0.3, 0.4)
_CIFAR_PREFIX = "CIFAR-10, "
_BYTES = ("dense_bytes", "pushed_bytes", "pulled_bytes", "dense_pulled_bytes")


class CodecCase(NamedTuple):
    """How updates are encoded, how the model is, and where momentum is applied."""

    codec: Mapping[str, Any]
    pull_codec: Mapping[str, Any] = {"kind": "dense"}
    device_momentum: bool = False  # on the devices, before they leave out entries, instead of on the coordinator


def _adaptive_name(ratio: float, delta: float) -> str:
    return f"CR {ratio:g}, δ {delta:g}"


def _power_sgd_case(rank: int, values: str) -> CodecCase:
    codec = {"kind": "power-sgd", "rank": rank, "values": values}
    return CodecCase(codec, codec)


_BEST = "CR 0.035, signs both ways"
CODECS: Mapping[str, CodecCase] = {
    "dense": CodecCase({"kind": "dense"}),
    **{
        _adaptive_name(ratio, delta): CodecCase({"kind": "adaptive", "ratio": ratio, "delta": delta})
        for ratio in RATIOS
        for delta in DELTAS
    },
    "CR 0.01, error feedback": CodecCase({"kind": "top-k", "ratio": 0.01, "values": "f16"}),
    "CR 0.04, signs, error feedback": CodecCase({"kind": "top-k", "ratio": 0.04, "values": "sign"}),
    "CR 0.01, no feedback": CodecCase({"kind": "top-k", "ratio": 0.01, "values": "f16", "error_feedback": False}),
    "graded, error feedback": CodecCase({"kind": "graded"}),
    _BEST: CodecCase(scadles_testbed.BEST_CODEC, scadles_testbed.BEST_PULL_CODEC),
    "CR 0.035, signs both ways, momentum on devices": CodecCase(
        scadles_testbed.BEST_CODEC, scadles_testbed.BEST_PULL_CODEC, device_momentum=True
    ),
    "graded both ways": CodecCase({"kind": "graded"}, {"kind": "graded"}),
    "PowerSGD, rank 4, both ways": CodecCase({"kind": "power-sgd", "rank": 4}, {"kind": "power-sgd", "rank": 4}),
    "PowerSGD, rank 3, 4 bits, both ways": _power_sgd_case(3, "int4"),
    "PowerSGD, rank 4, 4 bits, both ways": _power_sgd_case(4, "int4"),
    "PowerSGD, rank 1, both ways": CodecCase({"kind": "power-sgd", "rank": 1}, {"kind": "power-sgd", "rank": 1}),
    "fp16": CodecCase({"kind": "fp16"}),
    "int8": CodecCase({"kind": "int8"}),
}
_FEW = (
    "dense",
    _adaptive_name(0.1, 0.3),
    "graded, error feedback",
    "PowerSGD, rank 4, both ways",
    "PowerSGD, rank 3, 4 bits, both ways",
    "PowerSGD, rank 4, 4 bits, both ways",
    "PowerSGD, rank 1, both ways",
    "CR 0.035, signs both ways, momentum on devices",
    _BEST,
)


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    """Every codec on the digits, where training converges, the best with more seeds; some on CIFAR-10."""
    repeats = 1 if context.quick else 3
    runs = [
        _codec_piece(name, name, DIGITS, repeat, context)
        for repeat in range(repeats)
        for name in (CODECS if repeat == 0 else ("dense", _BEST))
    ]
    images = [
        _codec_piece(_CIFAR_PREFIX + name, name, CIFAR, repeat, context)
        for repeat in range(0 if context.quick else repeats)
        for name in (_FEW if repeat == 0 else ("dense", _BEST))
    ]
    return [_speed_piece(context), *runs, *images]


def _codec_piece(
    title: str, name: str, workload: CodecWorkload, repeat: int, context: BenchmarkContext
) -> BenchmarkPiece:
    case, seed = CODECS[name], context.seed + repeat
    if context.quick:
        workload = workload._replace(rounds=workload.rounds // 8)
    parameters = {
        "workload": dict(workload._asdict()), "codec": dict(case.codec), "pull_codec": dict(case.pull_codec),
        "device_momentum": case.device_momentum, "repeat": repeat,
    }  # fmt: skip
    expected_s = (2.0 if context.quick else 12.0) if workload.title == DIGITS.title else 330.0
    work = partial(measure_codec, workload, case, seed, context.data)
    return BenchmarkPiece(f"{title}/{repeat}", parameters, work, expected_s, parallel=True)


def _speed_piece(context: BenchmarkContext) -> BenchmarkPiece:
    size, repeats = (2_000_000, 3) if context.quick else (10_000_000, 9)
    parameters = {"size": size, "ratio": 0.01, "repeats": repeats}
    return BenchmarkPiece("speed", parameters, lambda: measure_compression(size, 0.01, repeats, context.seed), repeats)


def compute_figures(results: Results) -> list[Figure]:
    on_digits = [row for name in CODECS for row in _codec_figures(results, "", name)]
    on_images = [row for name in _FEW for row in _codec_figures(results, _CIFAR_PREFIX, name)]
    return [_speed_figure(results["speed"]), *on_digits, *on_images]


def _speed_figure(result: Mapping[str, Any]) -> Figure:
    ratios = [ours / reference for ours, reference in zip(result["ours_s"], result["reference_s"], strict=True)]
    return figure_of_repeats(
        "time to compress at CR 0.01 relative to a copy and torch.topk",
        "x",
        ratios,
        goal=Goal("≤", 3.0),
        executed="measured",
    )


def _codec_figures(results: Results, data: str, name: str) -> Iterator[Figure]:
    best, title = name == _BEST, data + name
    accuracies = _piece_values(results, title, "accuracy")
    if not accuracies:
        return
    yield figure_of_repeats(f"{title}: accuracy", "%", [100 * value for value in accuracies], executed="simulated")
    if name == "dense":
        return
    dense, pushed, pulled, pulled_dense = (_piece_values(results, title, key) for key in _BYTES)
    factors = [one / other for one, other in zip(dense, pushed, strict=True)]
    yield figure_of_repeats("  pushed volume, factor below dense", "x", factors, executed="simulated")
    if CODECS[name].pull_codec["kind"] != "dense":
        sums = zip(dense, pulled_dense, pushed, pulled, strict=True)
        both = [(one + two) / (three + four) for one, two, three, four in sums]
        goal = Goal("≥", 100.0) if best else None
        yield figure_of_repeats("  all bytes both ways, factor below dense", "x", both, goal=goal, executed="simulated")
    reference = _piece_values(results, f"{data}dense", "accuracy")[: len(accuracies)]
    lost = 100 * (statistics.mean(reference) - statistics.mean(accuracies))
    note = f"mean of {len(accuracies)} seeds" if len(accuracies) > 1 else ""
    goal = Goal("≤", 0.5 if data else 0.2) if best else None
    yield Figure(
        name="  accuracy lost compared with dense", unit="pt", measured=lost, goal=goal, note=note, executed="simulated"
    )
    if CODECS[name].codec["kind"] == "adaptive":
        yield figure_of_repeats(
            "  CNC, fraction of pushes compressed",
            "%",
            [100 * cnc for cnc in _piece_values(results, title, "cnc")],
            executed="simulated",
        )


def _piece_values(results: Results, name: str, key: str) -> list[float]:
    return [float(result[key]) for piece, result in results.items() if piece.rpartition("/")[0] == name]


def build_charts(results: Results) -> Sequence[Chart]:
    grid = [[_adaptive_name(ratio, delta) for delta in DELTAS] for ratio in RATIOS]
    series = [
        ChartSeries(f"CR {ratio:g}", [100 * statistics.mean(_piece_values(results, name, "cnc")) for name in names])
        for ratio, names in zip(RATIOS, grid, strict=True)
    ]
    groups = [f"δ {delta:g}" for delta in DELTAS]
    return [Chart(title="Pushes that are compressed (CNC)", y_label="% of all pushes", groups=groups, series=series)]


class CodecWorkload(NamedTuple):
    """A network, its data, and how long it is trained."""

    title: str
    task: Mapping[str, Any]
    rounds: int
    lr: float
    batch: int = 32
    devices: int = 16


DIGITS = CodecWorkload("MLP on digits", {"model": "mlp", "data": "digits"}, rounds=400, lr=0.1, batch=16)
CIFAR = CodecWorkload("LeNet-5 on CIFAR-10", {"model": "lenet", "data": "cifar10"}, rounds=1200, lr=0.05)


def compressed_job(workload: CodecWorkload, case: CodecCase, seed: int) -> Job:
    """Synchronous SGD whose updates and pulls go through the codecs."""
    codec, momentum = dict(case.codec), 0.9
    if case.device_momentum:
        codec, momentum = {**codec, "momentum": 0.9}, 0.0
    rounds = {
        "batching": {"kind": "fixed", "size": workload.batch},
        "codec": codec,
        "pull_codec": dict(case.pull_codec),
        "server": {"kind": "sgd", "lr": workload.lr, "momentum": momentum},
        "schedule": {"kind": "cosine", "rounds": workload.rounds},
    }
    return make(
        {
            "task": dict(workload.task),
            "fleet": {"devices": [{"preset": "pi4", "count": workload.devices}]},
            "recipe": "sync-sgd",
            "rounds": rounds,
            "stop": {"rounds": workload.rounds},
            "evaluate": 0,
            "checkpoint": 0,
            "seed": seed,
        }
    )


def measure_codec(workload: CodecWorkload, case: CodecCase, seed: int, data: Path | None) -> dict[str, float]:
    """Final accuracy, bytes both ways, and the fraction of pushes that were compressed (the paper's CNC)."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        result = potluck.simulate(compressed_job(workload, case, seed), folder=folder, data=data, threads=0)
        pushed, pulled = (list(_sent_bytes(folder / "journal.jsonl", name)) for name in ("push", "pull"))
    assert result.module is not None, result.reason
    dense_bytes = 4 * sum(parameter.numel() for parameter in result.module.parameters())
    return {
        "accuracy": float(result.summary["accuracy"]),
        "time_s": float(result.summary["time_s"]),
        "pushed_bytes": sum(pushed),
        "dense_bytes": dense_bytes * len(pushed),
        "pulled_bytes": sum(pulled),
        "dense_pulled_bytes": dense_bytes * len(pulled),
        "cnc": sum(nbytes < dense_bytes / 2 for nbytes in pushed) / len(pushed),
    }


def _sent_bytes(journal: Path, name: str) -> Iterator[float]:
    for record in read_journal(journal):
        if isinstance(record, Span) and record.name == name:
            yield record.fields["bytes"]


def time_compression(size: int, ratio: float, seed: int) -> tuple[float, float]:
    """Seconds of one thread for top-k with error feedback, from a gradient to its payload, and for copy plus topk."""
    gradient = _sample_gradient(size, seed)
    codec = TopKCodec(ratio=ratio)
    state = codec.new_state()
    count = codec.entry_count(ratio, size)
    with _one_thread():
        codec.encode(gradient, state)  # fills the error feedback
        reference = _timed_seconds(lambda: (gradient.clone(), torch.topk(gradient, count)))
        return _timed_seconds(lambda: codec.encode(gradient, state)), reference


def measure_compression(size: int, ratio: float, repeats: int, seed: int) -> Mapping[str, Any]:
    """Both times, repeated in turn."""
    times = [time_compression(size, ratio, seeds.child_seed(seed, repeat)) for repeat in range(repeats)]
    return {"ours_s": [ours for ours, _ in times], "reference_s": [reference for _, reference in times]}


def _sample_gradient(size: int, seed: int) -> Tensor:
    """Random values, most of them small and a few large, as in gradients."""
    values = seeds.child_generator(seed, "gradient").standard_normal(size, dtype=np.float32)
    return torch.from_numpy(values**3)


def _timed_seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

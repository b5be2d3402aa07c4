"""`tasks`: a GPT, a text classifier, segmentation and LoRA, trained centrally in plain PyTorch and by four methods."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece
from benchmarks.benchmark_catalogue import CATALOGUE
from benchmarks.measured_code import SIMULATED_PACKAGE
from benchmarks.tasks.task_figures import build_charts, compute_figures
from benchmarks.tasks.task_measurements import describe_workload, measure_step_time, measure_training
from benchmarks.tasks.task_workload import CENTRAL, WORKLOADS

__all__ = ["BENCHMARK", "declare_pieces"]

_STEP_S = {"gpt": 0.07, "classifier": 0.03, "segmentation": 0.04, "lora": 0.03}
_TEST_S = 5.0  # to build a task and to evaluate it


class _StepTiming(NamedTuple):
    """How often a step is timed: steps in a round, rounds, and repeats."""

    steps: int
    rounds: int
    repeats: int


_QUICK_TIMINGS = (_StepTiming(10, 2, 2),)
_FULL_TIMINGS = (_StepTiming(20, 5, 7), _StepTiming(1, 50, 5))


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    """Training runs go side by side; steps are timed alone."""
    pieces: list[BenchmarkPiece] = []
    for name in WORKLOADS:
        described = partial(describe_workload, name, context.data)
        pieces += [BenchmarkPiece(f"{name}/described", {}, described, _TEST_S, parallel=True)]
        pieces += _training_pieces(name, context)
    for timing in _QUICK_TIMINGS if context.quick else _FULL_TIMINGS:
        for repeat in range(timing.repeats):
            pieces += [_timing_piece(name, timing, repeat, context) for name in WORKLOADS]
    return pieces


def _training_pieces(name: str, context: BenchmarkContext) -> list[BenchmarkPiece]:
    workload, steps = WORKLOADS[name], WORKLOADS[name].step_count(context.quick)
    pieces = []
    for number in range(1 if context.quick else workload.seeds):
        for method in (CENTRAL, *workload.methods):
            measure = partial(measure_training, name, method, steps, context.seed + number, context.data)
            parameters = {"steps": steps, "rate": workload.rates[method]}
            expected_s = steps * _STEP_S[name] + _TEST_S
            pieces.append(BenchmarkPiece(f"{name}/{method}/{number}", parameters, measure, expected_s, parallel=True))
    return pieces


def _timing_piece(name: str, timing: _StepTiming, repeat: int, context: BenchmarkContext) -> BenchmarkPiece:
    measure = partial(measure_step_time, name, timing.steps, timing.rounds, repeat, context.data, context.seed)
    expected_s = 2 * timing.steps * (timing.rounds + 2) * _STEP_S[name] + _TEST_S
    parameters = {"rounds": timing.rounds}
    return BenchmarkPiece(f"{name}/step-{timing.steps}/{repeat}", parameters, measure, expected_s)


BENCHMARK = Benchmark(
    name="tasks",
    summary=CATALOGUE["tasks"].summary,
    pieces=declare_pieces,
    figures=compute_figures,
    charts=build_charts,
    notes=(
        "All methods of a workload see equally many samples. fedavg and distreal divide them among eight devices, so"
        " that each takes an eighth of the central loop's steps; dynacomm and ftpipehd divide every batch among four.",
        "GPT: nanoGPT's CPU configuration. The last tenth of the text is held out, all of it is evaluated, and weight"
        " decay applies to norms, too. Gradients are clipped centrally, by fedavg and by distreal, but not by dynacomm,"
        " whose transfers overlap with computation, nor in the pipeline.",
        "Every method uses AdamW and the best learning rate of those tried: a third, one, three and ten times a common"
        " one. They were compared by the metric on the test samples, with another seed and half of the steps (GPT: a"
        " quarter). Ten times was left out where three times was already worse: ftpipehd of the GPT, dynacomm and"
        " ftpipehd of the classifier. ftpipehd's rate of the GPT is the lowest that was tried. The central GPT has the"
        " published rate, and a row of its own with the tuned one.",
        "LoRA: rank 8 on all linear layers of a Llama (2 layers, 64 wide) that was trained on another language."
        " distreal slices frozen weights with the adapters, which therefore travel; lora-rank is its counterpart for"
        " adapters.",
        "Step time: CPU time of a single device over that of a plain loop with batches of the same size, the same"
        " optimizer and clipping, both in one thread, one after the other in alternating order. Building the model,"
        " evaluating it and the first round are left out.",
    ),
    datasets=lambda context: ("tiny-shakespeare",),
    measures=(*SIMULATED_PACKAGE, "!benchmarks/tasks/task_figures.py"),
)

"""The learning rate of every recipe, chosen by one procedure, and the trained network in a loop of its own.

Each recipe is trained for a short time on a slow and a fast set of streams with each base rate; the one with the
highest mean accuracy is its own (`scadles_testbed.BASE_RATES`). A bare PyTorch loop with the largest batch of the
benchmark shows whether the network as such learns at the linearly scaled rate.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import potluck
from benchmarks import networks
from benchmarks.benchmark import BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_figures import Figure
from benchmarks.streaming import rate_race, scadles_testbed
from benchmarks.streaming.rate_race import RaceWorkload
from potluck import data as datasets
from potluck import seeds

__all__ = ["RATES", "compute_figures", "declare_pieces", "measure_bare_loop", "measure_rate"]

RATES = (0.02, 0.05, 0.1, 0.2)
_SETS: tuple[scadles_testbed.RateSet, ...] = ("S1", "S2")
_SEED = 100  # not one of those that are compared
_FULL = RaceWorkload(epochs=2, target=1.0, scores=1)
_QUICK = RaceWorkload(epochs=0.3, target=1.0, scores=1, samples=10_000, data=scadles_testbed.SYNTHETIC)
_LARGEST_BATCH = 4721  # of scadles with the rates S2, where 16 devices of 64 samples are the base


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    """In a quick run one rate of each recipe only, to show that it works."""
    workload, rates = (_QUICK, RATES[:1]) if context.quick else (_FULL, RATES)
    pieces = [
        _tuning_piece(recipe, lr, name, workload, context)
        for recipe in rate_race.RECIPES
        for lr in rates
        for name in _SETS[: 1 if context.quick else 2]
    ]
    return [*pieces, _bare_loop_piece(context)]


def _tuning_piece(
    recipe: str, lr: float, rates: scadles_testbed.RateSet, workload: RaceWorkload, context: BenchmarkContext
) -> BenchmarkPiece:
    parameters = {"workload": dict(workload._asdict()), "recipe": recipe, "lr": lr, "rates": rates}
    work = partial(measure_rate, workload, recipe, lr, rates, context.data)
    expected_s = 2.0 if context.quick else 75.0
    return BenchmarkPiece(f"tuning/{recipe}/{lr:g}/{rates}", parameters, work, expected_s, parallel=True)


def _bare_loop_piece(context: BenchmarkContext) -> BenchmarkPiece:
    name, epochs, batch = (scadles_testbed.SYNTHETIC, 1, 1000) if context.quick else ("cifar10", 8, _LARGEST_BATCH)
    lr = scadles_testbed.BASE_RATES["scadles"]
    parameters = {"data": name, "epochs": epochs, "batch": batch, "lr": lr}
    work = partial(measure_bare_loop, name, epochs, batch, lr, context.data)
    return BenchmarkPiece("bare loop", parameters, work, expected_s=3.0 if context.quick else 180.0, parallel=True)


def measure_rate(
    workload: RaceWorkload, recipe: str, lr: float, rates: scadles_testbed.RateSet, data: Path | None
) -> dict[str, Any]:
    """The accuracy after a short training with this base rate; that of guessing if it diverges."""
    result = potluck.simulate(rate_race.race_job(workload, recipe, rates, _SEED, lr), data=data, threads=0)
    return {"accuracy": float(result.summary["accuracy"]) if result.status == "done" else 0.1}


def measure_bare_loop(name: str, epochs: int, batch: int, base_lr: float, data: Path | None) -> dict[str, Any]:
    """The accuracy of a plain loop: SGD with momentum at the linearly scaled rate, which falls like a cosine."""
    loaded = datasets.load(name, data)
    torch.manual_seed(0)
    model = networks.narrow()
    lr, steps = base_lr * batch / (16 * 64), epochs * (len(loaded.train) // batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps)))
    for epoch in range(epochs):
        order = seeds.child_generator(0, "bare loop", epoch).permutation(len(loaded.train))
        for start in range(0, len(order) - batch + 1, batch):
            inputs, targets = loaded.train.batch(order[start : start + batch])
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return {"accuracy": _test_accuracy(model, loaded.test), "lr": lr, "batch": batch}


@torch.no_grad()
def _test_accuracy(model: torch.nn.Module, samples: Any) -> float:
    model.eval()
    hits = 0
    for indices in np.array_split(np.arange(len(samples)), max(1, len(samples) // 1000)):
        inputs, targets = samples.batch(indices)
        hits += int((model(inputs).argmax(1) == targets).sum())
    return hits / len(samples)


def compute_figures(results: Results) -> Iterator[Figure]:
    for recipe in rate_race.RECIPES:
        accuracies = _mean_accuracies(results, recipe)
        best = max(accuracies, key=lambda lr: accuracies[lr])
        shown = ", ".join(f"{lr:g}: {100 * value:.1f} %" for lr, value in sorted(accuracies.items()))
        used = scadles_testbed.BASE_RATES[recipe]
        yield Figure(
            name=f"{recipe}: best base learning rate", unit="", measured=best, note=f"{shown}; used: {used:g}",
            executed="simulated",
        )  # fmt: skip
    bare: Mapping[str, Any] = results["bare loop"]
    yield Figure(
        name="bare loop with the largest batch: accuracy",
        unit="%",
        measured=100 * bare["accuracy"],
        note=f"plain PyTorch, batches of {bare['batch']} at the linearly scaled rate {bare['lr']:.2g}",
        executed="measured",
    )


def _mean_accuracies(results: Results, recipe: str) -> dict[float, float]:
    """The mean accuracy over the sets of streams, by base rate."""
    found: dict[float, list[float]] = {}
    for name, result in results.items():
        kind, _, rest = name.partition("/")
        if kind == "tuning" and rest.startswith(f"{recipe}/"):
            found.setdefault(float(rest.split("/")[1]), []).append(float(result["accuracy"]))
    return {lr: statistics.mean(values) for lr, values in found.items()}

"""The figures and charts of `pipeline`: speed, adaptation, recovery, accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.benchmark import Results
from benchmarks.benchmark_figures import Figure, Goal, PublishedValue, figure_of_repeats
from benchmarks.pipeline.pipeline_experiments import LINKS, RECOVERIES
from benchmarks.pipeline.pipeline_learning import learning_results
from potluck.report.svg_chart import Chart, ChartSeries

__all__ = ["build_charts", "compute_figures"]

_PAPER = "Chen et al. 2023"


def compute_figures(results: Results) -> list[Figure]:
    return [
        *_speed_figures(results["1:1:10"]),
        *_adaptation_figures(results["adaptation"]),
        *(figure for link in LINKS if f"replication/{link}" in results for figure in _link_figures(results, link)),
        *_live_figures(results["lived deaths"]),
        *_learning_figures(results),
    ]


def _speed_figures(found: Any) -> Iterator[Figure]:
    baseline = found["PipeDream"]["period_s"]
    given, searched = (found[f"ours, order {kind}"]["period_s"] for kind in ("given", "searched"))
    published = PublishedValue(6.8, _PAPER)
    yield Figure(name="PipeDream's partition, 1:1:10", unit="s", measured=baseline, note="per batch of 128")
    yield Figure(
        name="faster than PipeDream, published recurrence", unit="x",
        measured=baseline / found["published"]["period_s"], published=published,
    )  # fmt: skip
    yield Figure(
        name="faster than PipeDream, ours, devices in the order given", unit="x",
        measured=baseline / given, published=published, goal=Goal("≥", 6.8),
    )  # fmt: skip
    yield Figure(
        name="faster than PipeDream, ours, order searched", unit="x",
        measured=baseline / searched, published=published, goal=Goal("≥", 7.0),
        note=f"order {' '.join(found['ours, order searched']['order'])}",
    )  # fmt: skip
    share = 100 * found["bound_s"] / searched
    yield Figure(name="throughput against the partition's bound", unit="%", measured=share, goal=Goal("≥", 95.0))


def _adaptation_figures(found: Any) -> Iterator[Figure]:
    late = 100 * (found["adapted_s"] / found["best_s"] - 1)
    yield Figure(
        name="period above the optimum from 10 batches after a change", unit="%", measured=late, goal=Goal("≤", 5.0),
        note="one of three equal devices becomes 4 times slower",
    )  # fmt: skip
    gain = found["static_s"] / found["adapted_s"]
    yield Figure(name="  against the layout that stays", unit="x", measured=gain)


def _link_figures(results: Results, link: str) -> Iterator[Figure]:
    copies = results[f"replication/{link}"]
    cost = 100 * (copies["incremental"] / copies["none"] - 1)
    note = f"every {copies['incremental stride']} batches"
    yield Figure(
        name=f"replication, {LINKS[link]}: throughput lost", unit="%", measured=cost, goal=Goal("≤", 3.0), note=note
    )
    found = {name: results[f"recovery/{name}/{link}"] for name in RECOVERIES}
    for name, result in found.items():
        times = f"a batch took {result['period_before_s']:.2f} s before, {result['period_after_s']:.2f} s after"
        yield Figure(
            name=f"a death, {LINKS[link]}, {name}: next batch committed", unit="s", measured=result["seconds"],
            note=f"{result['rolled_back']:g} batches done again; {times}",
        )  # fmt: skip
        yield Figure(name=f"a death, {LINKS[link]}, {name}: what it costs", unit="s", measured=result["cost_s"])
    yield from _comparison_figures(LINKS[link], found["as published"], found["ours"])


def _comparison_figures(link: str, published: Any, ours: Any) -> Iterator[Figure]:
    yield Figure(
        name=f"a death, {link}: next batch committed sooner than as published by", unit="x",
        measured=published["seconds"] / ours["seconds"], goal=Goal("≥", 5.0),
        note="as published, too, what had passed the dead device is committed soon",
    )  # fmt: skip
    yield Figure(
        name=f"a death, {link}: costs less than as published by", unit="x",
        measured=published["cost_s"] / ours["cost_s"],
        note="against the pace of the new layout from the death on",
    )  # fmt: skip
    yield Figure(
        name=f"a death, {link}: batches flow again sooner by", unit="x",
        measured=published["flows_s"] / ours["flows_s"],
        note=f"after {ours['flows_s']:.3f} s against {published['flows_s']:.2f} s",
    )  # fmt: skip


def _live_figures(found: Any) -> Iterator[Figure]:
    """Real processes: the slowest of all deaths counts."""
    yield Figure(
        name="a death, live on this machine: next batch committed, at most", unit="s", measured=max(found["seconds"]),
        goal=Goal("≤", 2.0),
        note=f"noticed after {max(found['notice_s']):.3f} s, new layout after {max(found['flows_s']):.3f} s at most;"
        f" {found['rolled_back']} batches done again after {len(found['seconds'])} deaths",
    )  # fmt: skip


def _learning_figures(results: Results) -> Iterator[Figure]:
    """Seed by seed against one device alone."""
    found = learning_results(results)
    alone = [100 * run["accuracy"] for run in found["one device"]]
    for name, runs in found.items():
        accuracies = [100 * run["accuracy"] for run in runs]
        died = f", {runs[0]['deaths']} deaths" if runs[0]["deaths"] else ""
        yield figure_of_repeats(f"accuracy, {name}", "%", accuracies, note=f"after {runs[0]['time_s']:.0f} s{died}")
        if name.startswith("ours"):
            off = abs(sum(accuracies) - sum(alone)) / len(alone)
            yield Figure(
                name="  apart from one device alone", unit="pt", measured=off, goal=Goal("≤", 0.5), note="of the means"
            )


def build_charts(results: Results) -> Sequence[Chart]:
    return [
        _speed_chart(results),
        _adaptation_chart(results["adaptation"]),
        _recovery_chart(results),
        _learning_chart(results),
    ]


def _learning_chart(results: Results) -> Chart:
    first = {name: runs[0] for name, runs in learning_results(results).items()}
    series = [
        ChartSeries(name, [100 * value for value in run["accuracies"]], run["times_s"]) for name, run in first.items()
    ]
    return Chart(title="What is learned", y_label="test accuracy, %", x_label="seconds", series=series)


def _speed_chart(results: Results) -> Chart:
    found = sorted((result["capacities"][-1], result) for name, result in results.items() if name.startswith("1:1:"))
    names = ("published", "ours, order given", "ours, order searched")
    series = [
        ChartSeries(
            name,
            [result["PipeDream"]["period_s"] / result[name]["period_s"] for _, result in found],
            [float(worst) for worst, _ in found],
        )
        for name in names
    ]
    return Chart(
        title="Capacities 1:1:k", y_label="times faster than PipeDream", x_label="k", series=series,
        marks=[("published 6.8x", 6.8)],
    )  # fmt: skip


def _adaptation_chart(found: Any) -> Chart:
    batches = [float(place) - 10 for place in range(len(found["series"]))]
    return Chart(
        title="A device becomes 4 times slower", y_label="seconds from batch to batch", x_label="batches since then",
        series=[ChartSeries("ours", found["series"], batches)],
        marks=[("optimum", found["best_s"]), ("layout that stays", found["static_s"])],
    )  # fmt: skip


def _recovery_chart(results: Results) -> Chart:
    links = [link for link in LINKS if f"replication/{link}" in results]
    series = [
        ChartSeries(name, [results[f"recovery/{name}/{link}"]["cost_s"] for link in links]) for name in RECOVERIES
    ]
    return Chart(
        title="What a death costs", y_label="seconds",
        series=series, groups=[LINKS[link] for link in links],
    )  # fmt: skip

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
        *_stability_figures(results),
        *_slow_link_figures(results["slow link"]),
        *_adaptation_figures(results["adaptation"]),
        *(figure for link in LINKS if f"replication/{link}" in results for figure in _link_figures(results, link)),
        *_live_figures(results["live crashes"]),
        *_learning_figures(results),
    ]


def _speed_figures(result: Any) -> Iterator[Figure]:
    baseline, published = result["PipeDream"]["period_s"], PublishedValue(6.8, _PAPER)

    def speed_up(title: str, layout: str, goal: Goal | None = None) -> Figure:
        found = result[layout]
        moves = (
            f"order {' '.join(found['order'])}; {found['moves']} moves, the last after {found['found_after']} batches"
        )
        return Figure(
            name=f"speed-up over PipeDream, {title}", unit="x", measured=baseline / found["period_s"],
            published=published, goal=goal, better="more", note=moves, executed="simulated",
        )  # fmt: skip

    found = result["MACs, order searched"]
    yield speed_up("ours, planner knows MACs only, order searched", "MACs, order searched", Goal("≥", 6.8))
    yield Figure(
        name="  throughput relative to the bound of the partition", unit="%",
        measured=100 * result["bound_s"] / found["period_s"], goal=Goal("≥", 95.0), executed="simulated",
    )  # fmt: skip
    yield Figure(
        name="  batches until the layout is found", unit="", measured=found["found_after"], executed="simulated"
    )
    yield speed_up("ours, planner knows MACs only, order given", "MACs, order given")
    yield speed_up("ours, layers measured at the start", "measured, order searched", Goal("≥", 6.8))
    yield speed_up("ours, known costs", "known costs, order searched")
    yield speed_up("published recurrence", "published")
    yield Figure(
        name="period of PipeDream's partition, 1:1:10",
        unit="s",
        measured=baseline,
        note="per batch of 128",
        executed="simulated",
    )


def _stability_figures(results: Results) -> Iterator[Figure]:
    """Capacities 1:1:2, where layouts used to alternate."""
    if "1:1:2" not in results:
        return
    result = results["1:1:2"]
    for title, layout in (("MACs only", "MACs, order searched"), ("measured", "measured, order searched")):
        found = result[layout]
        yield Figure(
            name=f"moves at 1:1:2, planner knows {title}",
            unit="",
            measured=found["moves"],
            goal=Goal("≤", 2.0),
            executed="simulated",
        )
        excess = 100 * (found["period_s"] / result["bound_s"] - 1)
        yield Figure(
            name="  period above the best layout", unit="%", measured=excess, goal=Goal("≤", 1.0), executed="simulated"
        )


def _adaptation_figures(result: Any) -> Iterator[Figure]:
    excess = 100 * (result["adapted_s"] / result["best_s"] - 1)
    yield Figure(
        name="period above the optimum from 10 batches after a change", unit="%", measured=excess, goal=Goal("≤", 5.0),
        note="one of three equal devices becomes 4 times slower", executed="simulated",
    )  # fmt: skip
    gain = result["static_s"] / result["adapted_s"]
    yield Figure(name="  speed-up over the unchanged layout", unit="x", measured=gain, executed="simulated")


def _slow_link_figures(result: Any) -> Iterator[Figure]:
    yield Figure(
        name="period after a link drops to a fiftieth", unit="s", measured=result["adapted_s"],
        note=f"{result['nominal_s']:.1f} s by the fleet file's bandwidths; {result['before_s']:.2f} s before",
        executed="simulated",
    )  # fmt: skip
    yield Figure(
        name="  batches until the new layout", unit="", measured=result["batches"], goal=Goal("≤", 10.0),
        note="counted in committed batches", executed="simulated",
    )  # fmt: skip


def _link_figures(results: Results, link: str) -> Iterator[Figure]:
    copies = results[f"replication/{link}"]
    cost = 100 * (copies["incremental"] / copies["none"] - 1)
    note = f"every {copies['incremental stride']} batches"
    yield Figure(
        name=f"replication, {LINKS[link]}: throughput lost",
        unit="%",
        measured=cost,
        goal=Goal("≤", 3.0),
        note=note,
        executed="simulated",
    )
    by_recovery = {name: results[f"recovery/{name}/{link}"] for name in RECOVERIES}
    for name, result in by_recovery.items():
        times = f"a batch took {result['period_before_s']:.2f} s before, {result['period_after_s']:.2f} s after"
        yield Figure(
            name=f"crash, {LINKS[link]}, {name}: time to the next committed batch", unit="s",
            measured=result["seconds"],
            note=f"{result['rolled_back']:g} batches repeated; {times}", executed="simulated",
        )  # fmt: skip
        yield Figure(
            name=f"crash, {LINKS[link]}, {name}: cost", unit="s", measured=result["cost_s"], executed="simulated"
        )
    yield from _comparison_figures(LINKS[link], by_recovery["as published"], by_recovery["ours"])


def _comparison_figures(link: str, published: Any, ours: Any) -> Iterator[Figure]:
    yield Figure(
        name=f"crash, {link}: time to the next committed batch, as published over ours",
        unit="x",
        measured=published["seconds"] / ours["seconds"],
        goal=Goal("≥", 5.0),
        note="as published, batches that had passed the crashed device are committed soon as well",
        executed="simulated",
    )
    yield Figure(
        name=f"crash, {link}: cost, as published over ours", unit="x",
        measured=published["cost_s"] / ours["cost_s"],
        note="compared with the speed of the new layout since the crash", executed="simulated",
    )  # fmt: skip
    yield Figure(
        name=f"crash, {link}: time until batches flow again, as published over ours", unit="x",
        measured=published["flows_s"] / ours["flows_s"],
        note=f"after {ours['flows_s']:.3f} s instead of {published['flows_s']:.2f} s", executed="simulated",
    )  # fmt: skip


def _live_figures(result: Any) -> Iterator[Figure]:
    """The slowest recovery counts."""
    yield Figure(
        name="crash, live on this machine: time to the next committed batch, longest", unit="s",
        measured=max(result["seconds"]), goal=Goal("≤", 2.0),
        note=f"detected after {max(result['notice_s']):.3f} s, new layout after {max(result['flows_s']):.3f} s at most;"
        f" {result['rolled_back']} batches repeated after {len(result['seconds'])} crashes", executed="live",
    )  # fmt: skip


def _learning_figures(results: Results) -> Iterator[Figure]:
    """Compared with training on one device."""
    fill = results["batches in flight"]
    yield Figure(
        name="speed relative to unlimited batches in flight", unit="%",
        measured=100 * fill["unlimited_s"] / fill["default_s"], goal=Goal("≥", 90.0), executed="simulated",
    )  # fmt: skip
    by_variant = learning_results(results)
    alone = [100 * run["accuracy"] for run in by_variant["one device"]]
    for name, runs in by_variant.items():
        accuracies = [100 * run["accuracy"] for run in runs]
        crashes = f", {runs[0]['deaths']} crashes" if runs[0]["deaths"] else ""
        yield figure_of_repeats(
            f"accuracy, {name}", "%", accuracies, note=f"after {runs[0]['time_s']:.0f} s{crashes}", executed="simulated"
        )
        if name.startswith("ours"):
            yield Figure(
                name="  points below one device", unit="pt", measured=(sum(alone) - sum(accuracies)) / len(alone),
                goal=Goal("≤", 0.5), note="of the means", executed="simulated",
            )  # fmt: skip


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
    return Chart(
        title="Accuracy over time, first seed", y_label="test accuracy, %", x_label="simulated seconds", series=series
    )


def _speed_chart(results: Results) -> Chart:
    by_capacity = sorted(
        (result["capacities"][-1], result) for name, result in results.items() if name.startswith("1:1:")
    )
    names = ("published", "MACs, order searched", "measured, order searched")
    series = [
        ChartSeries(
            name,
            [result["PipeDream"]["period_s"] / result[name]["period_s"] for _, result in by_capacity],
            [float(slowest) for slowest, _ in by_capacity],
        )
        for name in names
    ]
    return Chart(
        title="Devices of speed 1:1:k",
        y_label="times faster than PipeDream",
        x_label="k, of the slowest device",
        series=series,
        marks=[("published 6.8x", 6.8)],
    )


def _adaptation_chart(result: Any) -> Chart:
    batches = [float(index) - 10 for index in range(len(result["series"]))]
    return Chart(
        title="A device becomes 4 times slower",
        y_label="simulated seconds from batch to batch",
        x_label="batches since then",
        series=[ChartSeries("ours", result["series"], batches)],
        marks=[("optimum", result["best_s"]), ("unchanged layout", result["static_s"])],
    )


def _recovery_chart(results: Results) -> Chart:
    links = [link for link in LINKS if f"replication/{link}" in results]
    series = [
        ChartSeries(name, [results[f"recovery/{name}/{link}"]["cost_s"] for link in links]) for name in RECOVERIES
    ]
    return Chart(
        title="Cost of a crash, mean of eight", y_label="simulated seconds",
        series=series, groups=[LINKS[link] for link in links],
    )  # fmt: skip

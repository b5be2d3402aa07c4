"""The `pipeline` benchmark: uneven, changing and dying devices in a pipeline (FTPipeHD), some deaths live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from potluck.bench.chart import Chart, Series
from potluck.bench.experiment import Benchmark, Context, Piece, Results
from potluck.bench.figures import Figure, Goal, Published
from potluck.bench.pipeline.experiments import LINKS, RECOVERIES, adaptation, recovery, replication, speed
from potluck.bench.pipeline.lived import deaths

__all__ = ["BENCHMARK"]

_PAPER = "Chen et al. 2023"
_WORST = (1, 2, 4, 7, 10, 15, 20)
_QUICK_WORST = (1, 4, 10)


def pieces(context: Context) -> Sequence[Piece]:
    worst = _QUICK_WORST if context.quick else _WORST
    links = ("lan",) if context.quick else tuple(LINKS)
    found = [Piece(f"1:1:{k}", {"k": k}, lambda k=k: speed((1, 1, k)), 8.0) for k in worst]  # type: ignore[misc]
    found.append(Piece("adaptation", {}, adaptation, 6.0))
    found.append(Piece("lived deaths", {}, deaths, 12.0))
    for link in links:
        found.append(Piece(f"replication/{link}", {"link": link}, lambda link=link: replication(link), 6.0))  # type: ignore[misc]
        for name in RECOVERIES:
            work = lambda name=name, link=link: recovery(name, link)  # noqa: E731
            found.append(Piece(f"recovery/{name}/{link}", {"name": name, "link": link}, work, 30.0))
    return found


def figures(results: Results) -> list[Figure]:
    return [
        *_speed_figures(results["1:1:10"]),
        *_adaptation_figures(results["adaptation"]),
        *(figure for link in LINKS if f"replication/{link}" in results for figure in _link_figures(results, link)),
        *_lived_figures(results["lived deaths"]),
    ]


def _speed_figures(found: Any) -> Iterator[Figure]:
    baseline = found["PipeDream"]["period_s"]
    given, searched = (found[f"ours, order {kind}"]["period_s"] for kind in ("given", "searched"))
    published = Published(6.8, _PAPER)
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
    yield from _against_published(found["as published"], found["ours"])


def _against_published(published: Any, ours: Any) -> Iterator[Figure]:
    yield Figure(
        name="  next batch committed, ours sooner than as published by", unit="x",
        measured=published["seconds"] / ours["seconds"], goal=Goal("≥", 5.0),
        note="as published, too, what had passed the dead device is committed soon",
    )  # fmt: skip
    yield Figure(
        name="  a death costs less than as published by", unit="x", measured=published["cost_s"] / ours["cost_s"],
        note="against the pace of the new layout from the death on",
    )  # fmt: skip
    yield Figure(
        name="  batches flow again, ours sooner by", unit="x", measured=published["flows_s"] / ours["flows_s"],
        note=f"after {ours['flows_s']:.3f} s against {published['flows_s']:.2f} s",
    )  # fmt: skip


def _lived_figures(found: Any) -> Iterator[Figure]:
    """Real processes: the slowest of all deaths counts."""
    yield Figure(
        name="a death, live on this machine: next batch committed, at most", unit="s", measured=max(found["seconds"]),
        goal=Goal("≤", 2.0),
        note=f"noticed after {max(found['notice_s']):.3f} s, new layout after {max(found['flows_s']):.3f} s at most;"
        f" {found['rolled_back']} batches done again after {len(found['seconds'])} deaths",
    )  # fmt: skip


def charts(results: Results) -> Sequence[Chart]:
    return [_sweep(results), _change(results["adaptation"]), _recoveries(results)]


def _sweep(results: Results) -> Chart:
    found = sorted((result["capacities"][-1], result) for name, result in results.items() if name.startswith("1:1:"))
    names = ("published", "ours, order given", "ours, order searched")
    series = [
        Series(
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


def _change(found: Any) -> Chart:
    batches = [float(place) - 10 for place in range(len(found["series"]))]
    return Chart(
        title="A device becomes 4 times slower", y_label="seconds from batch to batch", x_label="batches since then",
        series=[Series("ours", found["series"], batches)],
        marks=[("optimum", found["best_s"]), ("layout that stays", found["static_s"])],
    )  # fmt: skip


def _recoveries(results: Results) -> Chart:
    links = [link for link in LINKS if f"replication/{link}" in results]
    series = [Series(name, [results[f"recovery/{name}/{link}"]["cost_s"] for link in links]) for name in RECOVERIES]
    return Chart(
        title="What a death costs", y_label="seconds",
        series=series, groups=[LINKS[link] for link in links],
    )  # fmt: skip


BENCHMARK = Benchmark(
    name="pipeline",
    summary="uneven, changing and dying devices in a pipeline (FTPipeHD), simulated; deaths live as well",
    pieces=pieces,
    figures=figures,
    charts=charts,
    notes=(
        "MobileNetV2, CIFAR-10 pictures, batch 128, three devices; timing only, with seconds per layer measured once on"
        " one core of a shared machine and cuts between any two layers.",
        "Recovery: of three devices (1:1:1.5) the second or the third dies after batch 150, at four moments between two"
        " batches; means of these eight. What a death costs is how much later batch 168 is committed than if the new"
        " layout had been at its pace from the death on. Checkpoints every 100 batches. As published: batch timer of"
        " twice the mean, copies every 100 and 200 batches, without optimizer state, versions mixed.",
        "Live: four processes on this machine, a small network, devices slowed to 5 MFLOP/s; the three workers are"
        " killed one after another, and the clock runs to the first batch that the new layout commits.",
    ),
)

"""Transfers cut into segments: the same weights whatever the cuts, and the time that the planner predicts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import potluck
from potluck.job import make
from potluck.journal import Span, read_journal
from potluck.planning.segments import Strategy, plan_segments
from potluck.run.rounds_setup import RoundsSetup

KINDS: list[Strategy] = ["sequential", "layer-by-layer", "ibatch", "mg-wfbp", "optimal"]
LINK = {"up": "200 Mbit/s", "down": "300 Mbit/s", "latency": "5 ms", "overhead": "1 ms"}


def job(kind: str, window: int = 1, **settings: Any) -> potluck.Job:
    cut = {} if kind == "sequential" else {"window": window}
    tables: dict[str, Any] = {
        "task": {"model": "lenet", "data": {"kind": "synthetic", "shape": [1, 28, 28], "train": 96, "test": 10}},
        "recipe": "sync-sgd",
        "stop": {"rounds": 20},
        "rounds": {"batching": {"size": 32}, "transfer": {"kind": kind, **cut}},
        "fleet": {"devices": [{"name": "d", "count": 3, "flops": "2 GFLOP/s", "link": LINK}]},
        "evaluate": 0,
    }
    return make({**tables, **settings})


@pytest.mark.parametrize("recipe", ["sync-sgd", "fedavg"])
def test_the_weights_do_not_depend_on_the_cuts(recipe: str) -> None:
    models = []
    for kind in KINDS:
        for window in (1, 3):
            result = potluck.simulate(job(kind, window, recipe=recipe))
            assert result.module is not None
            models.append(result.module.state_dict())
    for other in models[1:]:
        assert all(torch.equal(models[0][name], other[name]) for name in models[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_takes_as_long_as_the_planner_predicts(kind: Strategy) -> None:
    """One device, one request in flight: round trip of the invitation, pull with forward, push with backward."""
    one_job = job(kind, timing_only=True, fleet={"devices": [{"name": "d", "flops": "2 GFLOP/s", "link": LINK}]})
    setup = RoundsSetup.from_job(one_job, None, None)
    costs, prior = setup.whole_model_costs("d"), setup.link_prior("d")
    overhead = prior.overhead + prior.round_trip
    layers = range(costs.layer_count)
    pull = plan_segments(
        [costs.forward_s(layer, 32) for layer in layers],
        [n / prior.down for n in costs.pull_bytes],
        overhead,
        "pull",
        kind,
    )
    push = plan_segments(
        [costs.backward_s(layer, 32) for layer in layers],
        [n / prior.up for n in costs.push_bytes],
        overhead,
        "push",
        kind,
    )
    measured = potluck.simulate(one_job).summary["time_s"] / 20
    assert measured == pytest.approx(pull.makespan + push.makespan, rel=0.02)


@pytest.mark.parametrize(("kind", "recipe"), [("layer-by-layer", "sync-sgd"), ("optimal", "fedavg")])
def test_every_segment_of_layers_has_its_own_compute_span(kind: str, recipe: str, tmp_path: Path) -> None:
    """Forward starts once the first segment is there, backward from the last layer; no repeats, no waits in a span."""
    one_job = job(
        kind, 3, recipe=recipe, stop={"rounds": 2}, rounds={"batching": {"size": 8}, "transfer": {"kind": kind}}
    )
    potluck.simulate(one_job, folder=tmp_path / "run")
    records = list(read_journal(tmp_path / "run" / "journal.jsonl"))
    spans = [record for record in records if isinstance(record, Span) and record.fields.get("round") == 1]
    own_spans = {
        name: [span for span in spans if (span.node, span.name) == ("d-0", name)] for name in ("pull", "compute")
    }
    computed = own_spans["compute"]
    forward, backward = ([s for s in computed if s.fields.get("pass") == way] for way in ("forward", "backward"))
    assert [span.fields["layers"] for span in forward] == sorted(span.fields["layers"] for span in own_spans["pull"])
    assert len(forward) > 1
    assert backward[-1].fields["layers"][0] == 0
    assert [span.fields["layers"] for span in backward] == sorted((s.fields["layers"] for s in backward), reverse=True)
    assert all(before.end <= after.start for before, after in pairwise(computed))
    arrivals = {tuple(span.fields["layers"]): span.end for span in own_spans["pull"]}
    assert all(span.start >= arrivals[tuple(span.fields["layers"])] for span in forward)
    assert [span.fields["samples"] for span in computed if "samples" in span.fields] == [
        32 if recipe != "sync-sgd" else 8
    ]
    costs, sizes = (
        RoundsSetup.from_job(one_job, None, None).whole_model_costs("d-0"),
        [8] * (4 if recipe == "fedavg" else 1),
    )
    assert sum(span.end - span.start for span in computed) == pytest.approx(sum(map(costs.step_s, sizes)))


def test_optimal_cuts_follow_a_link_that_becomes_slow() -> None:
    """Within five rounds of a drop to a tenth, the plan is as good as one made for the new speed."""
    fleet = {
        "devices": [
            {
                "name": "d",
                "flops": "2 GFLOP/s",
                "link": {**LINK, "quality": {"kind": "piecewise", "at": [0, "2 s"], "levels": [1.0, 0.1]}},
            }
        ]
    }
    slow = {"devices": [{"name": "d", "flops": "2 GFLOP/s", "link": {**LINK, "up": "20 Mbit/s", "down": "30 Mbit/s"}}]}
    adapted = _durations(job("optimal", timing_only=True, fleet=fleet, stop={"rounds": 60}))
    expected = _durations(job("optimal", timing_only=True, fleet=slow))[-1]
    changed = next(index for index, seconds in enumerate(adapted) if seconds > 1.5 * adapted[0])
    assert adapted[changed + 5] == pytest.approx(expected, rel=0.03)


def test_optimal_cuts_follow_a_device_that_becomes_slow() -> None:
    fast = {
        "devices": [
            {
                "name": "d",
                "flops": "2 GFLOP/s",
                "link": LINK,
                "speed": {"kind": "piecewise", "at": [0, "2 s"], "levels": [1.0, 0.2]},
            }
        ]
    }
    slow = {"devices": [{"name": "d", "flops": "0.4 GFLOP/s", "link": LINK}]}
    adapted = _durations(job("optimal", timing_only=True, fleet=fast, stop={"rounds": 60}))
    expected = _durations(job("optimal", timing_only=True, fleet=slow))[-1]
    changed = next(index for index, seconds in enumerate(adapted) if seconds > 1.5 * adapted[0])
    assert adapted[changed + 5] == pytest.approx(expected, rel=0.03)


def _durations(job: potluck.Job) -> list[float]:
    """Seconds of each round."""
    ends: list[float] = [0.0]
    potluck.simulate(job, watch=lambda store, now: ends.append(now))
    return [later - earlier for earlier, later in pairwise(ends)]

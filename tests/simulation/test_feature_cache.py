"""Class groups on a frozen trunk whose outputs are kept: the same training, cheaper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import potluck
from potluck.data import from_torch
from potluck.errors import SettingError
from potluck.journal import Span, read_journal
from potluck.loops.backends import TurnIdentity
from potluck.model import zoo
from potluck.model.decoupled import GroupedNetwork
from potluck.model.decoupled.feature_cache import FeatureCache
from potluck.model.decoupled.group_extractor import GroupExtractor
from potluck.planning.groups import group_cost
from potluck.run.rounds_setup import RoundsSetup
from tests.model.decoupled.networks import samples, small
from tests.simulation.runs import journal
from tests.simulation.test_decoupled import THIRDS, data, make_job, run, task

FROZEN = {**THIRDS, "trunk": "frozen", "depth": 2}
CACHED = {**FROZEN, "cache": "4 MB"}
LONGER = {"local": {"kind": "sgd", "lr": 0.05, "epochs": 3, "momentum": 0.5}}


def test_training_is_the_same_with_a_cache_and_the_trunk_runs_once_per_sample(tmp_path: Path) -> None:
    plain, slow = run(make_job(FROZEN, 3, rounds=LONGER), tmp_path / "plain", norm=True)
    cached, fast = run(make_job(CACHED, 3, rounds=LONGER), tmp_path / "cached", norm=True)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(cached.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert fast["samples"] == slow["samples"]
    cost = group_cost(plain.graph, (2, 2, 2), 2, (0,))
    trunk_s = 2 * cost.trunk_macs / 40e6  # two operations per MAC
    held = len(RoundsSetup.from_job(make_job(CACHED, 3), task(), None).shards["pi-0"])
    (plain_s, trained), (cached_s, same) = (compute_of(tmp_path / folder, "pi-0") for folder in ("plain", "cached"))
    assert trained == same > 3 * held
    assert plain_s - cached_s == pytest.approx((trained - held) * trunk_s, rel=1e-6)


def compute_of(folder: Path, device: str) -> tuple[float, int]:
    """The seconds that a device computed, and the samples that it trained on."""
    records = read_journal(folder / "journal.jsonl")
    spans = [one for one in records if isinstance(one, Span) and (one.node, one.name) == (device, "compute")]
    return sum(span.end - span.start for span in spans), sum(int(span.fields["samples"]) for span in spans)


def test_a_resumed_run_does_not_fill_the_cache_in_modelled_time_again(tmp_path: Path) -> None:
    job = make_job(CACHED, 3, stop={"rounds": 4}, checkpoint=2)
    potluck.simulate(job, task=task(), folder=tmp_path / "whole", threads=0)
    times: list[float] = []
    potluck.simulate(
        job, task=task(), folder=tmp_path / "cut", threads=0,
        watch=lambda store, now: times.append(now), stopping=lambda: len(times) >= 3,
    )  # fmt: skip
    potluck.resume(tmp_path / "cut", task=task(), threads=0)
    assert journal(tmp_path / "whole") == journal(tmp_path / "cut")


def test_a_sub_model_with_a_cache_costs_its_groups_and_the_trunk_once() -> None:
    setup = RoundsSetup.from_job(make_job(CACHED, 3), task(norm=True), None)
    assert isinstance(setup.extractor, GroupExtractor)
    spec = setup.extractor.select_submodel(TurnIdentity("pi-1", 0, 0))
    cost = group_cost(setup.extractor.grouped.graph, (2, 2, 2), 2, (1,))
    assert (sum(spec.macs), spec.once_macs) == (cost.group_macs, cost.trunk_macs)
    assert cost.training_macs(frozen=True, cached=True) == cost.training_macs(frozen=True) - cost.trunk_macs


def test_each_sample_goes_through_the_trunk_once() -> None:
    train = data().train
    trunk = small()[:6]
    cache = FeatureCache(trunk)
    for indices in ([3, 5, 9], [5, 3, 3], [9, 11]):
        features, labels = cache.batch(train, np.array(indices))
        inputs, expected = train.batch(np.array(indices))
        torch.testing.assert_close(features, trunk.eval()(inputs))
        assert torch.equal(labels, expected)
    assert cache.computed == 4


def test_residual_networks_train_on_a_cache_with_overlapped_transfers() -> None:
    residual = potluck.Task(zoo.build_model("resnet20", classes=6, channels=2), data())
    submodel = {**CACHED, "depth": 1}
    job = make_job(submodel, 3, rounds={"transfer": "optimal"}, stop={"rounds": 2})
    result = potluck.simulate(job, task=residual, threads=0)
    assert isinstance(result.module, GroupedNetwork)
    assert result.summary["untrained_groups"] == []


@pytest.mark.parametrize(
    ("submodel", "more", "words"),
    [
        ({**CACHED, "trunk": "averaged"}, {}, "set `trunk` to 'frozen'"),
        ({**CACHED, "negatives": "generated"}, {}, "generated `negatives` do not"),
        ({**CACHED, "cache": "1 kB"}, {}, "samples of pi-0 take .*allow that much"),
        (CACHED, {"stream": {}}, "a stream brings others"),
    ],
)
def test_a_cache_that_cannot_work_is_refused(submodel: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        RoundsSetup.from_job(make_job(submodel, 3, **more), task(), None)


def test_a_cache_of_samples_that_may_be_transformed_at_random_is_refused() -> None:
    inputs, labels = samples(60)
    pairs = [(one, int(label)) for one, label in zip(inputs, labels, strict=True)]
    lazy = potluck.Task(small(), from_torch(pairs, pairs[:6]))
    with pytest.raises(SettingError, match="these may be transformed at random"):
        RoundsSetup.from_job(make_job(CACHED, 3), lazy, None)

"""The kinds of submodels: what is pulled and trained, always within the device's budget."""

from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from potluck.errors import SettingError
from potluck.job import dump_job, make
from potluck.model.model_replica import ModelReplica
from potluck.model.submodels.submodel_parts import Submodel
from potluck.model.submodels.width_sampler import WidthSampler
from potluck.planning.pareto_table import Cost, ParetoTable
from potluck.settings import decode_settings, encode_settings, part_kinds
from tests.model.submodels.networks import traced

KINDS = ["whole", "uniform-dropout", "federated-dropout", "heterofl", "fedrolex", "fjord", "small"]


def sampler(kind: object, name: str = "resnet20") -> WidthSampler:
    return decode_settings(kind, Submodel).create_sampler(traced(name)[0], seed=5)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_all_kinds_survive_encoding_and_decoding() -> None:
    assert [*part_kinds(Submodel)][: len(KINDS) + 1] == ["whole", "filter-dropout", *KINDS[1:]]
    for kind in KINDS:
        submodel = decode_settings(kind, Submodel)
        assert decode_settings(encode_settings(submodel), Submodel) == submodel


@given(
    st.sampled_from(["uniform-dropout", "federated-dropout", "heterofl", "fedrolex", "fjord"]),
    st.floats(0, 1.2),
    st.integers(0, 9),
)
def test_a_choice_is_never_over_budget_unless_the_smallest_is(kind: str, budget: float, seed: int) -> None:
    width_sampler = SAMPLERS[kind]
    choice = width_sampler.choose_width(budget, rng(seed), capacity=budget)
    assert choice.cost_fraction <= budget or choice == width_sampler.choices[0]
    assert choice.cost_fraction == width_sampler.slimmable.macs_fraction(choice.counts)
    pulled = width_sampler.submodel_for_round("pi", seed, budget)
    assert pulled is None or pulled.choice.cost_fraction <= budget or pulled.choice == width_sampler.choices[0]


SAMPLERS = {kind: sampler(kind) for kind in KINDS}


def test_the_whole_model_is_pulled_when_every_mini_batch_uses_another_submodel() -> None:
    for kind in ("whole", "uniform-dropout", "small"):
        assert SAMPLERS[kind].submodel_for_round("pi", 3, 0.2) is None


def test_coordinator_and_device_extract_the_same_submodel_independently() -> None:
    for kind in ("federated-dropout", "heterofl", "fedrolex", "fjord"):
        one, other = (sampler(kind).submodel_for_round("pi", 3, 0.3) for _ in range(2))
        assert one is not None
        assert other is not None
        assert torch.equal(one.selection.params.index, other.selection.params.index)


def test_units_kept_by_each_kind() -> None:
    def first_set(kind: str, round: int, device: str = "pi") -> list[int]:
        pulled = SAMPLERS[kind].submodel_for_round(device, round, 0.3)
        assert pulled is not None
        assert pulled.subsets[0] is not None
        return [int(unit) for unit in pulled.subsets[0]]

    assert first_set("heterofl", 0) == first_set("heterofl", 7) == [*range(8)]
    assert first_set("fedrolex", 0) == [*range(8)]
    assert first_set("fedrolex", 1) == [*range(1, 9)]
    assert first_set("fedrolex", 12) == [0, 1, 2, 3, 12, 13, 14, 15]
    assert first_set("federated-dropout", 0) != first_set("federated-dropout", 1)
    assert first_set("federated-dropout", 0) != first_set("federated-dropout", 0, "laptop")


def test_rolling_windows_cover_every_unit_equally_often() -> None:
    counts = np.zeros(16, dtype=int)
    for round in range(16):
        pulled = SAMPLERS["fedrolex"].submodel_for_round("pi", round, 0.3)
        assert pulled is not None
        counts[pulled.subsets[0]] += 1
    assert set(counts) == {8}


def test_fjord_trains_within_the_pulled_submodel() -> None:
    width_sampler, draws = SAMPLERS["fjord"], rng()
    pulled = width_sampler.submodel_for_round("pi", 0, 0.5)
    assert pulled is not None
    widths = set()
    for _ in range(50):
        choice = width_sampler.choose_width(1.0, draws, capacity=0.5)
        units = width_sampler.choose_units(choice, draws, pulled)
        inside = width_sampler.slimmable.select_units(units).params.index
        assert np.isin(inside, pulled.selection.params.index).all()
        widths.add(choice.counts)
    assert len(widths) == 3  # 0.2, 0.4 and 0.6 of the width cost no more than half of the MACs


def test_mini_batches_differ_with_dropout_and_not_with_slices() -> None:
    for kind, differ in (("uniform-dropout", True), ("heterofl", False)):
        width_sampler, draws = SAMPLERS[kind], rng()
        pulled = width_sampler.submodel_for_round("pi", 0, 0.3)
        choice = width_sampler.choose_width(0.3, draws, capacity=0.3)
        one, other = (width_sampler.choose_units(choice, draws, pulled) for _ in range(2))
        assert np.array_equal(one[0], other[0]) is not differ  # type: ignore[arg-type]


def test_filter_dropout_takes_its_sizes_from_a_table() -> None:
    slimmable, shape = traced("mlp")
    sets = [part.name for part in slimmable.sets]
    rates = [[0.5, 0.0], [0.0, 0.0]]
    trials = [
        (slimmable.forward_macs(slimmable.kept_counts(rate)), float(gain), rate) for gain, rate in enumerate(rates)
    ]
    table = ParetoTable.from_trials("mlp", sets, slimmable.full_macs, trials)
    width_sampler = sampler({"kind": "filter-dropout", "table": encode_settings(table)}, "mlp")
    counts = [step.counts for step in width_sampler.choices]
    assert counts[0] == (10, 12)
    assert counts[-1] == (20, 12)
    assert {units for _, units in counts} == {12}, "a mixture of two vectors lies between them"
    assert max(dear.cost_fraction / cheap.cost_fraction for cheap, dear in pairwise(width_sampler.choices)) < 1.2
    assert width_sampler.choose_width(0.49, rng()).counts == (10, 12)
    replica = ModelReplica(slimmable.chain.module, slimmable.layout, nn.functional.cross_entropy)
    before = replica.state.params.clone()
    units = width_sampler.choose_units(width_sampler.choose_width(0.6, rng()), rng())
    batch = (torch.ones(4, *shape), torch.arange(4))
    width_sampler.create_workspace(replica).train_step(
        units, batch, lambda weights, gradient, _: weights.sub_(gradient)
    )
    assert 0 < int((before != replica.state.params).sum()) < len(before)


def test_choices_reach_the_whole_model_even_if_the_table_does_not() -> None:
    slimmable, _ = traced("mlp")
    rates = [0.8, 0.6]
    trials = [(slimmable.forward_macs(slimmable.kept_counts(rates)), 0.5, rates)]
    table = ParetoTable.from_trials("mlp", [part.name for part in slimmable.sets], slimmable.full_macs, trials)
    width_sampler = sampler({"kind": "filter-dropout", "table": encode_settings(table), "units": "leading"}, "mlp")
    assert width_sampler.choices[-1].counts == slimmable.full_counts
    assert len(width_sampler.choices) > 5
    kept_units = width_sampler.choose_units(width_sampler.choices[0], rng())
    assert [units.tolist() for units in kept_units if units is not None] == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]


def test_a_table_in_seconds_is_chosen_from_by_seconds() -> None:
    """Half of the units may take most of the time, so measured times count, not MACs."""
    slimmable, _ = traced("mlp")
    rates, costs = [[0.8, 0.6], [0.5, 0.0]], [0.5, 0.8]
    trials = [(round(cost * slimmable.full_macs), cost, rate) for cost, rate in zip(costs, rates, strict=True)]
    sets = [part.name for part in slimmable.sets]
    timed = ParetoTable.from_trials("mlp", sets, slimmable.full_macs, trials, "seconds")
    width_sampler = sampler({"kind": "filter-dropout", "table": encode_settings(timed)}, "mlp")
    narrow, half = (slimmable.kept_counts(rate) for rate in rates)
    fractions = {step.counts: step.cost_fraction for step in width_sampler.choices}
    assert [fractions[narrow], fractions[half], fractions[slimmable.full_counts]] == [*timed.cost_fractions, 1.0]
    between = [step for step in width_sampler.choices if fractions[narrow] < step.cost_fraction < fractions[half]]
    assert len(between) > 1
    for step in between:
        position = max((now - one) / (other - one) for now, one, other in zip(step.counts, narrow, half, strict=True))
        assert step.cost_fraction == pytest.approx(0.5 + 0.3 * position, abs=1e-3)
    for budget in np.linspace(0, 1.1, 111):
        choice = width_sampler.choose_width(budget, rng())
        assert fractions[choice.counts] <= budget or choice == width_sampler.choices[0]
    assert width_sampler.choose_width(0.6, rng()).counts < half
    by_macs = sampler({"kind": "filter-dropout", "table": {**encode_settings(timed), "cost": "macs"}}, "mlp")
    assert by_macs.choose_width(0.6, rng()).counts >= half


@pytest.mark.parametrize("cost", ["macs", "seconds"])
def test_filter_dropout_keeps_multiples_of_the_grid(cost: Cost) -> None:
    slimmable, _ = traced("resnet20")
    rates = [[0.7] * len(slimmable.sets), [0.2] * len(slimmable.sets)]
    trials = [
        (slimmable.forward_macs(slimmable.kept_counts(rate, 8)), float(gain), rate) for gain, rate in enumerate(rates)
    ]
    table = ParetoTable.from_trials(
        "resnet20", [table_setting.name for table_setting in slimmable.sets], slimmable.full_macs, trials, cost
    )
    for table_setting in ({}, {"table": encode_settings(table)}):
        on_grid = sampler({"kind": "filter-dropout", "grid": 8, **table_setting}).choices
        assert all(units % 8 == 0 or units < 8 for step in on_grid for units in step.counts)
        assert on_grid[-1] == (slimmable.full_counts, 1.0)
        anywhere = sampler({"kind": "filter-dropout", **table_setting}).choices
        assert any(units % 8 for step in anywhere for units in step.counts if units > 8)
    dearest = slimmable.kept_counts(rates[1], 8)
    sizes = {step.counts: step.cost_fraction for step in on_grid}
    assert sizes[dearest] == pytest.approx(slimmable.macs_fraction(dearest))
    contained = [one for one in sizes if all(a >= b for a, b in zip(one, dearest, strict=True))]
    assert all(sizes[one] >= sizes[dearest] for one in contained), "rounding up does not make it cheaper"


def test_a_remote_device_has_the_same_choices(tmp_path: Path) -> None:
    """Only the job's text is sent: the table file is local and may no longer exist."""
    slimmable, _ = traced("mlp")
    rates = [[0.7, 0.3], [1 / 3, 0.1]]
    trials = [
        (slimmable.forward_macs(slimmable.kept_counts(rate)), float(gain), rate) for gain, rate in enumerate(rates)
    ]
    ParetoTable.from_trials("mlp", [part.name for part in slimmable.sets], slimmable.full_macs, trials).save(
        tmp_path / "table.json"
    )
    tables = {"task": "pkg.mod:task", "fleet": "pi-shelf", "stop": {"rounds": 1}}
    job = make({**tables, "rounds": {"submodel": {"kind": "filter-dropout", "table": "table.json"}}}, folder=tmp_path)
    (tmp_path / "table.json").unlink()
    local, remote = (
        one.rounds.submodel.create_sampler(slimmable, 5).choices for one in (job, make(tomllib.loads(dump_job(job))))
    )
    assert local == remote
    assert local[0].counts == (6, 8)


def test_a_table_for_another_model_is_refused() -> None:
    table = ParetoTable.from_trials("lenet", ["conv1"], 100, [(50, 1.0, [0.5])])
    with pytest.raises(SettingError, match=r"table: is for another model \(lenet\); .* `potluck explore`"):
        sampler({"kind": "filter-dropout", "table": encode_settings(table)}, "mlp")


def test_the_small_network_stays_within_its_cost_fraction() -> None:
    slimmable, _ = traced("resnet20")
    submodel = decode_settings({"kind": "small", "share": 0.33}, Submodel)
    counts = submodel.largest_counts(slimmable)  # type: ignore[attr-defined]
    assert 0.25 < slimmable.macs_fraction(counts) <= 0.33

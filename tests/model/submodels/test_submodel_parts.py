"""The kinds of sub-models: what is pulled, what is trained, always within what the device can afford."""

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


def test_all_kinds_are_known_and_survive_being_written_down() -> None:
    assert [*part_kinds(Submodel)][: len(KINDS) + 1] == ["whole", "filter-dropout", *KINDS[1:]]
    for kind in KINDS:
        part = decode_settings(kind, Submodel)
        assert decode_settings(encode_settings(part), Submodel) == part


@given(
    st.sampled_from(["uniform-dropout", "federated-dropout", "heterofl", "fedrolex", "fjord"]),
    st.floats(0, 1.2),
    st.integers(0, 9),
)
def test_a_choice_is_never_over_budget_unless_the_smallest_is(kind: str, budget: float, seed: int) -> None:
    carved = CARVERS[kind]
    choice = carved.choose_width(budget, rng(seed), capacity=budget)
    assert choice.cost_fraction <= budget or choice == carved.choices[0]
    assert choice.cost_fraction == carved.slimmable.macs_fraction(choice.counts)
    pulled = carved.submodel_for_round("pi", seed, budget)
    assert pulled is None or pulled.choice.cost_fraction <= budget or pulled.choice == carved.choices[0]


CARVERS = {kind: sampler(kind) for kind in KINDS}


def test_the_whole_model_is_pulled_where_every_mini_batch_is_another() -> None:
    for kind in ("whole", "uniform-dropout", "small"):
        assert CARVERS[kind].submodel_for_round("pi", 3, 0.2) is None


def test_both_sides_carve_the_same_without_a_word() -> None:
    for kind in ("federated-dropout", "heterofl", "fedrolex", "fjord"):
        one, other = (sampler(kind).submodel_for_round("pi", 3, 0.3) for _ in range(2))
        assert one is not None
        assert other is not None
        assert torch.equal(one.selection.params.index, other.selection.params.index)


def test_who_keeps_which_units() -> None:
    def first_set(kind: str, round: int, device: str = "pi") -> list[int]:
        pulled = CARVERS[kind].submodel_for_round(device, round, 0.3)
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
    seen = np.zeros(16, dtype=int)
    for round in range(16):
        pulled = CARVERS["fedrolex"].submodel_for_round("pi", round, 0.3)
        assert pulled is not None
        seen[pulled.subsets[0]] += 1
    assert set(seen) == {8}


def test_fjord_trains_inside_what_it_has_pulled() -> None:
    carved, draws = CARVERS["fjord"], rng()
    pulled = carved.submodel_for_round("pi", 0, 0.5)
    assert pulled is not None
    widths = set()
    for _ in range(50):
        choice = carved.choose_width(1.0, draws, capacity=0.5)
        kept = carved.choose_units(choice, draws, pulled)
        inside = carved.slimmable.select_units(kept).params.index
        assert np.isin(inside, pulled.selection.params.index).all()
        widths.add(choice.counts)
    assert len(widths) == 3  # 0.2, 0.4 and 0.6 of the width cost no more than half of the MACs


def test_mini_batches_differ_with_dropout_and_not_with_slices() -> None:
    for kind, differ in (("uniform-dropout", True), ("heterofl", False)):
        carved, draws = CARVERS[kind], rng()
        pulled = carved.submodel_for_round("pi", 0, 0.3)
        choice = carved.choose_width(0.3, draws, capacity=0.3)
        one, other = (carved.choose_units(choice, draws, pulled) for _ in range(2))
        assert np.array_equal(one[0], other[0]) is not differ  # type: ignore[arg-type]


def test_filter_dropout_takes_its_sizes_from_a_table() -> None:
    found, shape = traced("mlp")
    sets = [part.name for part in found.sets]
    rates = [[0.5, 0.0], [0.0, 0.0]]
    seen = [(found.forward_macs(found.kept_counts(rate)), float(gain), rate) for gain, rate in enumerate(rates)]
    table = ParetoTable.from_trials("mlp", sets, found.full_macs, seen)
    carved = sampler({"kind": "filter-dropout", "table": encode_settings(table)}, "mlp")
    counts = [step.counts for step in carved.choices]
    assert counts[0] == (10, 12)
    assert counts[-1] == (20, 12)
    assert {kept for _, kept in counts} == {12}, "a mixture of two vectors lies between them"
    assert max(dear.cost_fraction / cheap.cost_fraction for cheap, dear in pairwise(carved.choices)) < 1.2
    assert carved.choose_width(0.49, rng()).counts == (10, 12)
    replica = ModelReplica(found.chain.module, found.layout, nn.functional.cross_entropy)
    before = replica.state.params.clone()
    kept = carved.choose_units(carved.choose_width(0.6, rng()), rng())
    batch = (torch.ones(4, *shape), torch.arange(4))
    carved.create_workspace(replica).train_step(kept, batch, lambda weights, gradient, _: weights.sub_(gradient))
    assert 0 < int((before != replica.state.params).sum()) < len(before)


def test_a_table_without_the_whole_model_leads_to_it_all_the_same() -> None:
    found, _ = traced("mlp")
    rates = [0.8, 0.6]
    seen = [(found.forward_macs(found.kept_counts(rates)), 0.5, rates)]
    table = ParetoTable.from_trials("mlp", [part.name for part in found.sets], found.full_macs, seen)
    carved = sampler({"kind": "filter-dropout", "table": encode_settings(table), "units": "leading"}, "mlp")
    assert carved.choices[-1].counts == found.full_counts
    assert len(carved.choices) > 5
    kept = carved.choose_units(carved.choices[0], rng())
    assert [units.tolist() for units in kept if units is not None] == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]


def test_a_table_of_seconds_is_chosen_from_by_seconds() -> None:
    """Half of the units may take most of the time: what was measured counts, not the MACs."""
    found, _ = traced("mlp")
    rates, costs = [[0.8, 0.6], [0.5, 0.0]], [0.5, 0.8]
    seen = [(round(cost * found.full_macs), cost, rate) for cost, rate in zip(costs, rates, strict=True)]
    sets = [part.name for part in found.sets]
    timed = ParetoTable.from_trials("mlp", sets, found.full_macs, seen, "seconds")
    carved = sampler({"kind": "filter-dropout", "table": encode_settings(timed)}, "mlp")
    few, half = (found.kept_counts(rate) for rate in rates)
    shares = {step.counts: step.cost_fraction for step in carved.choices}
    assert [shares[few], shares[half], shares[found.full_counts]] == [*timed.cost_fractions, 1.0]
    between = [step for step in carved.choices if shares[few] < step.cost_fraction < shares[half]]
    assert len(between) > 1
    for step in between:
        place = max((now - one) / (other - one) for now, one, other in zip(step.counts, few, half, strict=True))
        assert step.cost_fraction == pytest.approx(0.5 + 0.3 * place, abs=1e-3)
    for budget in np.linspace(0, 1.1, 111):
        choice = carved.choose_width(budget, rng())
        assert shares[choice.counts] <= budget or choice == carved.choices[0]
    assert carved.choose_width(0.6, rng()).counts < half
    by_macs = sampler({"kind": "filter-dropout", "table": {**encode_settings(timed), "cost": "macs"}}, "mlp")
    assert by_macs.choose_width(0.6, rng()).counts >= half


@pytest.mark.parametrize("cost", ["macs", "seconds"])
def test_filter_dropout_keeps_multiples_where_that_is_asked(cost: Cost) -> None:
    found, _ = traced("resnet20")
    rates = [[0.7] * len(found.sets), [0.2] * len(found.sets)]
    seen = [(found.forward_macs(found.kept_counts(rate, 8)), float(gain), rate) for gain, rate in enumerate(rates)]
    table = ParetoTable.from_trials("resnet20", [part.name for part in found.sets], found.full_macs, seen, cost)
    for part in ({}, {"table": encode_settings(table)}):
        on_grid = sampler({"kind": "filter-dropout", "grid": 8, **part}).choices
        assert all(kept % 8 == 0 or kept < 8 for step in on_grid for kept in step.counts)
        assert on_grid[-1] == (found.full_counts, 1.0)
        anywhere = sampler({"kind": "filter-dropout", **part}).choices
        assert any(kept % 8 for step in anywhere for kept in step.counts if kept > 8)
    dearest = found.kept_counts(rates[1], 8)
    sizes = {step.counts: step.cost_fraction for step in on_grid}
    assert sizes[dearest] == pytest.approx(found.macs_fraction(dearest))
    contained = [one for one in sizes if all(a >= b for a, b in zip(one, dearest, strict=True))]
    assert all(sizes[one] >= sizes[dearest] for one in contained), "rounding up does not make it cheaper"


def test_a_device_elsewhere_has_the_same_sizes_to_choose_from(tmp_path: Path) -> None:
    """The job's text is all that travels: the table's file is here only, and may be gone by then."""
    found, _ = traced("mlp")
    rates = [[0.7, 0.3], [1 / 3, 0.1]]
    seen = [(found.forward_macs(found.kept_counts(rate)), float(gain), rate) for gain, rate in enumerate(rates)]
    ParetoTable.from_trials("mlp", [part.name for part in found.sets], found.full_macs, seen).save(
        tmp_path / "table.json"
    )
    tables = {"task": "pkg.mod:task", "fleet": "pi-shelf", "stop": {"rounds": 1}}
    job = make({**tables, "rounds": {"submodel": {"kind": "filter-dropout", "table": "table.json"}}}, folder=tmp_path)
    (tmp_path / "table.json").unlink()
    here, there = (
        one.rounds.submodel.create_sampler(found, 5).choices for one in (job, make(tomllib.loads(dump_job(job))))
    )
    assert here == there
    assert here[0].counts == (6, 8)


def test_a_table_for_another_model_is_refused() -> None:
    table = ParetoTable.from_trials("lenet", ["conv1"], 100, [(50, 1.0, [0.5])])
    with pytest.raises(SettingError, match=r"table: is for another model \(lenet\); .* `potluck explore`"):
        sampler({"kind": "filter-dropout", "table": encode_settings(table)}, "mlp")


def test_the_small_network_costs_no_more_than_it_may() -> None:
    found, _ = traced("resnet20")
    part = decode_settings({"kind": "small", "share": 0.33}, Submodel)
    counts = part.largest_counts(found)  # type: ignore[attr-defined]
    assert 0.25 < found.macs_fraction(counts) <= 0.33

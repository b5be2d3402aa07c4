from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from potluck.model.codecs import DenseCodec
from potluck.model.model_replica import ModelTemplate
from potluck.model.model_state import WeightLayout
from potluck.model.optimizers import Adam, Optimizer, Sgd
from potluck.model.submodel_interface import SubmodelSpec
from potluck.model.submodels.slimmable_model import SlimmableModel, choose_subsets, random_units, trace_slimmable
from potluck.model.submodels.submodel_selection import SubmodelSelection
from potluck.model.torch_server import TorchServer
from potluck.model.torch_trainer import ReceivedSegment
from potluck.model.update_merging import EquallyWeighted, MergeRule, SampleWeighted, StalenessWeighted, UpdateSum
from potluck.payload import Payload
from potluck.settings import part_kinds


def _layout(params: int, buffers: int = 0, dtype: torch.dtype = torch.float32) -> WeightLayout:
    return WeightLayout((), (), (0, params), (0, buffers), dtype)


def _merged(updates: list[torch.Tensor], weights: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    total = UpdateSum(_layout(len(updates[0]), dtype=dtype))
    for update, weight in zip(updates, weights, strict=True):
        total.add(update, torch.zeros(0, dtype=dtype), weight)
    return total.mean()[0]


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
WEIGHTS = st.one_of(st.integers(1, 10**9).map(float), st.floats(1e-6, 1e6))


@settings(deadline=None)
@given(values=st.lists(FLOATS, min_size=1, max_size=30), weight=WEIGHTS)
def test_a_single_update_is_merged_exactly(values: list[float], weight: float) -> None:
    update = torch.tensor(values, dtype=torch.float32)
    assert torch.equal(_merged([update], [weight]), update)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_single_update_of_any_dtype_is_merged_exactly(dtype: torch.dtype) -> None:
    """In double precision the product with a weight is rounded, so it must not be divided out again."""
    update = torch.randn(10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)
    for weight in (1.0, 3.0, 7.0, 100.0, 49.0):
        merged = _merged([update], [weight], dtype)
        assert merged.dtype == dtype
        assert torch.equal(merged, update)


@settings(deadline=None)
@given(values=st.lists(FLOATS, min_size=1, max_size=9), weights=st.lists(st.integers(1, 10**6), min_size=1, max_size=9))
def test_equal_updates_merge_to_themselves(values: list[float], weights: list[int]) -> None:
    update = torch.tensor(values, dtype=torch.float32)
    assert torch.equal(_merged([update] * len(weights), [float(weight) for weight in weights]), update)


@settings(deadline=None)
@given(data=st.data(), count=st.integers(1, 6))
def test_the_mean_is_the_weighted_mean(data: st.DataObject, count: int) -> None:
    values = st.lists(st.floats(-1e3, 1e3, width=32), min_size=5, max_size=5)
    updates = [torch.tensor(data.draw(values), dtype=torch.float32) for _ in range(count)]
    weights = [float(data.draw(st.integers(1, 1000))) for _ in range(count)]
    expected = sum(update.double() * weight for update, weight in zip(updates, weights, strict=True)) / sum(weights)
    torch.testing.assert_close(_merged(updates, weights), torch.as_tensor(expected).float(), rtol=1e-6, atol=1e-9)


@settings(deadline=None)
@given(data=st.data())
def test_the_order_of_samples_weighted_updates_does_not_matter(data: st.DataObject) -> None:
    """Products of 24 bits and whole numbers of samples are exact in double, so only sums of far apart sizes round."""
    updates = [torch.tensor(data.draw(st.lists(st.floats(-8, 8, width=16), min_size=4, max_size=4))) for _ in range(5)]
    weights = [float(data.draw(st.integers(1, 1000))) for _ in range(5)]
    order = data.draw(st.permutations(range(5)))
    shuffled = _merged([updates[n] for n in order], [weights[n] for n in order])
    assert torch.equal(shuffled, _merged(updates, weights))


def test_parameters_and_buffers_are_merged_alike() -> None:
    total = UpdateSum(_layout(2, 1))
    total.add(torch.tensor([1.0, 2.0]), torch.tensor([10.0]), 1.0)
    total.add(torch.tensor([3.0, 6.0]), torch.tensor([20.0]), 3.0)
    params, buffers = total.mean()
    assert params.tolist() == [2.5, 5.0]
    assert buffers.tolist() == [17.5]
    assert params.dtype == buffers.dtype == torch.float32


def test_an_update_is_not_changed_by_adding_it() -> None:
    update = torch.tensor([1.0, 2.0])
    _merged([update, update], [2.0, 5.0])
    assert update.tolist() == [1.0, 2.0]


def test_a_sum_of_nothing_has_no_mean() -> None:
    with pytest.raises(AssertionError, match="nothing was added"):
        UpdateSum(_layout(2)).mean()


def test_update_weights() -> None:
    assert SampleWeighted().update_weight(37, 5) == 37.0
    assert EquallyWeighted().update_weight(37, 5) == 1.0
    assert StalenessWeighted().update_weight(37, 0) == 1.0
    assert StalenessWeighted().update_weight(37, 3) == 0.5
    assert StalenessWeighted(power=1.0).update_weight(37, 3) == 0.25


@settings(deadline=None)
@given(samples=st.integers(1, 10**9), staleness=st.integers(0, 10**6))
def test_every_weight_is_positive(samples: int, staleness: int) -> None:
    shipped = [kind for kind in part_kinds(MergeRule).values() if kind.__module__ == "potluck.model.update_merging"]
    assert len(shipped) >= 3
    for kind in shipped:
        merge = kind()
        assert isinstance(merge, MergeRule)
        assert merge.update_weight(samples, staleness) > 0


# --- submodel updates, which cover only some entries ------------------------------------------------------------------

NETWORK: SlimmableModel = trace_slimmable(
    nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.BatchNorm1d(7), nn.Linear(7, 2)), (3,)
)


def _add_part(
    total: UpdateSum, selection: SubmodelSelection, update: torch.Tensor, weight: float, change: float = 0.0
) -> None:
    buffers = torch.full((selection.buffers.size,), change)
    total.add_submodel(update, buffers, weight, selection.params.index, selection.buffers.index)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0, 0.9)), min_size=1, max_size=5), st.integers(0, 99))
def test_the_mean_of_overlapping_sub_models_is_exact(updates: list[tuple[int, float]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    total = UpdateSum(NETWORK.layout)
    size = NETWORK.layout.param_bounds[-1]
    sums, weights = [Fraction(0)] * size, [0] * size
    for weight, rate in updates:
        selection = NETWORK.select_units(choose_subsets(NETWORK, NETWORK.kept_counts([rate]), random_units(rng)))
        update = torch.from_numpy(rng.integers(-1000, 1000, selection.params.size).astype(np.float32) / 64)
        _add_part(total, selection, update, weight)
        for index, value in zip(selection.params.index.tolist(), update.tolist(), strict=True):
            sums[index] += Fraction(value) * weight
            weights[index] += weight
    direction, change = total.mean()
    for index in range(size):
        expected = float(sums[index] / weights[index]) if weights[index] else 0.0
        assert direction[index].item() == np.float32(expected)
    trained = total.trained_mask()
    assert (torch.ones(size) > 0 if trained is None else trained).tolist() == [weight > 0 for weight in weights]
    assert float(change.abs().sum()) == 0.0


@pytest.mark.parametrize("whole_first", [True, False])
def test_whole_updates_count_for_every_entry_of_sub_models_too(whole_first: bool) -> None:
    selection, size = NETWORK.select_units([np.array([0, 5])]), NETWORK.layout.param_bounds[-1]
    total, all_buffers = UpdateSum(NETWORK.layout), torch.zeros(NETWORK.layout.buffer_bounds[-1])
    if whole_first:
        total.add(torch.full((size,), 4.0), all_buffers, 3.0)
    _add_part(total, selection, torch.zeros(selection.params.size), 1.0)
    if not whole_first:
        total.add(torch.full((size,), 4.0), all_buffers, 3.0)
    inside = torch.zeros(size, dtype=torch.bool)
    inside[selection.params.index] = True
    direction, _ = total.mean()
    assert total.trained_mask() is None
    assert torch.equal(direction, torch.where(inside, 3.0, 4.0))


def test_a_single_submodel_update_is_merged_exactly_at_any_weight() -> None:
    selection = NETWORK.select_units([np.array([1, 4])])
    update = torch.randn(selection.params.size, generator=torch.Generator().manual_seed(0))
    total = UpdateSum(NETWORK.layout)
    _add_part(total, selection, update, 0.3, change=1.0)
    direction, change = total.mean()
    assert torch.equal(direction[selection.params.index], update)
    assert int((change != 0).sum()) == selection.buffers.size


@pytest.mark.parametrize("optimizer", [Sgd(lr=0.1, momentum=0.9, weight_decay=0.1), Adam()])
def test_untrained_entries_change_neither_weight_nor_optimizer_state(optimizer: Optimizer) -> None:
    server = TorchServer(
        ModelTemplate(NETWORK.chain.module, NETWORK.layout, nn.functional.cross_entropy),
        None,
        SampleWeighted(),
        optimizer,
        DenseCodec(),
    )
    history = []
    for units in (np.arange(7), np.array([2, 3, 6])):
        selection = NETWORK.select_units([units])
        part = _submodel_spec(selection)
        values = torch.ones(selection.params.size).numpy(), torch.zeros(selection.buffers.size).numpy()
        server.add_update([ReceivedSegment(0, NETWORK.layout.layer_count - 1, Payload(0, values))], part, 5, 0)
        server.step(1.0)
        history.append({name: value.clone() for name, value in server.tensors().items()})
    inside = torch.zeros(NETWORK.layout.param_bounds[-1], dtype=torch.bool)
    inside[selection.params.index] = True
    vectors = [name for name, value in history[0].items() if value.shape == inside.shape]
    assert len(vectors) > 1
    for name in vectors:
        assert torch.equal(history[0][name] != history[1][name], inside), name


def _submodel_spec(selection: SubmodelSelection) -> SubmodelSpec:
    """A selection whose layer bounds all lie in the first layer, which is enough to merge it as one segment."""
    layers = NETWORK.layout.layer_count
    params, buffers = ((0, *(size,) * layers) for size in (selection.params.size, selection.buffers.size))
    layout = WeightLayout((), (), params, buffers, NETWORK.layout.dtype)
    return SubmodelSpec(selection.counts, selection.params.index, selection.buffers.index, layout, [1.0] * layers)

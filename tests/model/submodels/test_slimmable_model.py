"""Which channels belong together, what a narrower network costs, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from potluck.errors import ModelError
from potluck.model import zoo
from potluck.model.flop_counter import count_macs
from potluck.model.submodels.narrow_network import build_narrow_network, width_agnostic_graph
from potluck.model.submodels.slimmable_model import choose_subsets, random_units, trace_slimmable
from tests.model.submodels.networks import LARGE, NETWORKS, traced

CASES = [name for name in NETWORKS if name not in LARGE]


def sets(name: str) -> dict[str, int]:
    return {channels.name: channels.size for channels in traced(name)[0].sets}


@pytest.mark.parametrize("name", CASES)
def test_macs_are_those_of_the_flop_counter_at_any_width(name: str) -> None:
    slimmable, shape = traced(name)
    counts = slimmable.kept_counts([0.4] * len(slimmable.sets))
    assert slimmable.forward_macs(counts) == count_macs(
        build_narrow_network(slimmable, width_agnostic_graph(slimmable), counts), shape
    )
    assert slimmable.full_macs == sum(layer.macs for layer in slimmable.chain.layers)


@pytest.mark.parametrize("name", CASES)
def test_a_narrow_vector_is_the_full_vector_at_its_indices(name: str) -> None:
    slimmable, _ = traced(name)
    rng = np.random.default_rng(3)
    subsets = choose_subsets(
        slimmable, slimmable.kept_counts(list(rng.uniform(0, 0.9, len(slimmable.sets)))), random_units(rng)
    )
    selection = slimmable.select_units(subsets)
    for half, size in (
        (selection.params, slimmable.layout.param_bounds[-1]),
        (selection.buffers, slimmable.layout.buffer_bounds[-1]),
    ):
        vector = torch.arange(size, dtype=torch.float64)
        small = half.gather(vector)
        assert torch.equal(small, vector[half.index])
        assert len(set(half.index.tolist())) == len(half.index) == half.size
        target = torch.full_like(vector, -1.0)
        half.scatter(small, target)
        assert torch.equal(target[half.index], small)
        assert int((target == -1).sum()) == size - half.size


def test_input_and_classifier_are_never_dropped() -> None:
    for name in ("vgg9", "resnet20", "mlp", "by hand"):
        assert not {"classifier", "fc2", "sample"} & sets(name).keys()
    slimmable, _ = traced("mlp")
    narrowest = build_narrow_network(slimmable, width_agnostic_graph(slimmable), [1] * len(slimmable.sets))
    assert narrowest(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_both_sides_of_a_residual_sum_share_a_set() -> None:
    sizes = sets("resnet20")
    assert len(sizes) == 12  # one for each of three stages, one inside each of nine blocks
    assert {"conv1": 16, "block1_1.branch.first.conv": 16}.items() <= sizes.items()
    assert "block1_1.branch.second.conv" not in sizes


def test_a_concatenation_keeps_its_sets_apart_and_depthwise_follows_its_input() -> None:
    assert len(sets("densenet40")) == 1 + 3 * 12 + 2
    assert sets("ds-cnn") == {"conv1": 64, **{f"block{block}.pointwise.conv": 64 for block in (1, 2, 3, 4)}}


def test_channel_groups_are_kept_or_dropped_as_a_unit() -> None:
    assert sets("grouped") == {"reduce": 6, "expand": 12}
    assert traced("grouped")[0].sets[0].grain == 4


def test_at_least_one_unit_is_kept() -> None:
    slimmable, shape = traced("lenet")
    counts = slimmable.kept_counts([0.999] * len(slimmable.sets))
    assert counts == (1, 1, 1, 1)
    small = build_narrow_network(slimmable, width_agnostic_graph(slimmable), counts)
    assert small(torch.zeros(2, *shape)).shape == (2, 10)


def test_a_grid_keeps_multiples_of_eight_and_smaller_sets() -> None:
    slimmable, _ = traced("resnet20")
    sizes = {
        (channels.size, kept)
        for channels, kept in zip(slimmable.sets, slimmable.kept_counts([0.25] * 12, grid=8), strict=True)
    }
    assert sizes == {(16, 16), (32, 24), (64, 48)}
    assert set(slimmable.kept_counts([0.9] * 12, grid=8)) == {2, 3, 6}
    assert slimmable.kept_counts([0.0] * 12, grid=8) == slimmable.full_counts


def test_a_sum_of_incompatible_channels_is_never_dropped() -> None:
    class Crossed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 6, 1), nn.Conv2d(3, 10, 1)
            self.d, self.head = nn.Conv2d(10, 7, 1), nn.Conv2d(7, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.d(torch.cat([self.a(x), self.b(x)], 1) + self.c(x)))
            return out

    assert [channels.name for channels in trace_slimmable(Crossed(), (3, 4, 4)).sets] == ["d"]


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.LayerNorm(8), "LayerNorm"),
        (nn.ConvTranspose2d(6, 6, 3), "ConvTranspose2d"),
        (nn.LocalResponseNorm(2), "LocalResponseNorm"),
        (nn.PixelShuffle(1), "PixelShuffle"),
    ],
)
def test_an_unsupported_layer_is_refused_by_name(layer: nn.Module, name: str) -> None:
    module = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), layer, nn.Flatten(), nn.LazyLinear(2))
    module(torch.zeros(1, 3, 8, 8))
    with pytest.raises(ModelError, match=f"'?{name}'? \\(1\\)"):
        trace_slimmable(module, (3, 8, 8))


def test_an_unsupported_operation_is_refused_by_name() -> None:
    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.first(x).roll(1, 1))
            return out

    with pytest.raises(ModelError, match="roll"):
        trace_slimmable(Shuffled(), (3, 4, 4))


def test_any_operation_on_the_input_is_allowed() -> None:
    class Normalised(nn.Module):
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3, 1, 1))
            self.first, self.head = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.first((x - self.mean).roll(1, 1)))
            return out

    assert [channels.name for channels in trace_slimmable(Normalised(), (3, 4, 4)).sets] == ["first"]


def test_every_small_image_network_of_the_zoo_can_be_narrowed() -> None:
    for name in ("vgg16-bn-cifar", "alexnet-cifar"):
        slimmable = trace_slimmable(zoo.build_model(name), zoo.model_entry(name).shape)
        assert 0.2 < slimmable.macs_fraction(slimmable.kept_counts([0.5] * len(slimmable.sets))) < 0.3

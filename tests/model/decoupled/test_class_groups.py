from __future__ import annotations

from typing import Any

import pytest
import torch

from potluck.data import Dataset, from_tensors
from potluck.errors import SettingError
from potluck.model.decoupled.class_groups import ClassGroups
from potluck.model.layer_chain import trace_layers
from potluck.model.submodels.submodel_parts import Submodel
from potluck.settings import decode_settings, encode_settings
from tests.model.decoupled.networks import SHAPE, samples, small


def data() -> Dataset:
    """Classes 0 and 5 are similar, as are 1 and 4, and 2 and 3."""
    inputs, labels = samples(120)
    base = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(5))
    inputs = 0.1 * inputs + base[torch.minimum(labels, 5 - labels)]
    return from_tensors(inputs, labels, inputs[:6], labels[:6], name="alike", classes=tuple("abcdef"))


def part(**settings: Any) -> ClassGroups:
    settings_part = decode_settings({"kind": "class-groups", **settings}, Submodel)
    assert isinstance(settings_part, ClassGroups)
    return settings_part


@pytest.mark.parametrize("groups", [3, [[0, 1, 2], [3, 4, 5]]])
def test_class_groups_survive_encoding_and_decoding(groups: Any) -> None:
    original = part(groups=groups, depth=2, held={"pi": [0, 1]}, trunk="frozen")
    assert decode_settings(encode_settings(original), Submodel) == original


def test_similar_classes_are_grouped_together() -> None:
    grouped = part(groups=3, alike=True).build_grouped(trace_layers(small(), SHAPE), data().train, 0)
    assert grouped.spec.groups == ((0, 5), (1, 4), (2, 3))


def test_an_attributed_network_keeps_weights_of_the_original() -> None:
    module = small(norm=False)
    grouped = part(groups=2, variant="attributed").build_grouped(trace_layers(module, SHAPE), data().train, 0)
    rows = {tuple(row.flatten().tolist()) for row in module[2].weight.detach()}  # type: ignore[operator]
    kept_rows = [tuple(row.flatten().tolist()) for row in grouped.state_dict()["groups.0.stages.2.weight"]]
    assert rows.issuperset(kept_rows)


def test_a_shape_only_network_is_decoupled_too() -> None:
    with torch.device("meta"):
        hollow = small()
    sizes = part(groups=3).build_grouped(trace_layers(hollow, SHAPE), None, 0)
    real = part(groups=3).build_grouped(trace_layers(small(), SHAPE), data().train, 0)
    shapes = {name: tensor.shape for name, tensor in real.state_dict().items()}
    assert {name: tensor.shape for name, tensor in sizes.state_dict().items()} == shapes
    assert all(param.is_meta for param in sizes.parameters())


def test_given_groups_and_automatic_grouping_are_mutually_exclusive() -> None:
    with pytest.raises(SettingError, match="set `groups` to their number"):
        part(groups=[[0, 1, 2], [3, 4, 5]], alike=True)

from __future__ import annotations

import pytest
from torch import nn

from potluck.errors import SettingError
from potluck.settings import decode_settings
from potluck.task import TaskSettings


def _task(**more: object) -> TaskSettings:
    return decode_settings({"model": "resnet20", "data": "cifar10", **more}, TaskSettings, "task")


def test_group_norms_replace_batch_norms() -> None:
    plain, grouped = (_task(norm=norm).model_factory((3, 32, 32), 10)() for norm in ("batch", "group"))
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in grouped.modules())
    batch, group = (
        sum(isinstance(layer, kind) for layer in module.modules())
        for module, kind in ((plain, nn.BatchNorm2d), (grouped, nn.GroupNorm))
    )
    assert batch == group > 0
    assert [p.shape for p in plain.parameters()] == [p.shape for p in grouped.parameters()]


def test_unknown_networks_are_refused_with_their_key() -> None:
    with pytest.raises(SettingError, match=r"task\.costs: no model 'resnet2'"):
        _task(costs="resnet2")
    with pytest.raises(SettingError, match=r"task\.model: no model"):
        _task(model="nonesuch")
    with pytest.raises(SettingError, match=r"task\.norm"):
        _task(norm="layer")

"""The recipes by class groups: devices that train the part their classes need, and the central run to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from potluck.data import overlapping_splits as overlapping_splits  # declares its splits
from potluck.model.decoupled import class_groups as class_groups  # declares its kind of sub-model

__all__ = ["CENTRAL", "DECOUPLED"]

_LOCAL = {"kind": "sgd", "lr": 0.05, "epochs": 1}

DECOUPLED: Mapping[str, Any] = {"rounds": {"local": _LOCAL, "submodel": "class-groups"}}
CENTRAL: Mapping[str, Any] = {"rounds": {"local": _LOCAL, "devices": 1}, "split": "everything"}

"""Tensors without numbers, by default: `torch.device("meta")` without loading the compiler, which takes seconds.

The context that torch offers is wrapped for torch.compile and imports all of it when first used; a device that only
wants to know the shapes of its model should not wait for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

__all__ = ["ShapeOnlyMode"]


class ShapeOnlyMode(TorchFunctionMode):
    """Within this, whatever makes tensors makes hollow ones, unless told where."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _device_constructors() and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)

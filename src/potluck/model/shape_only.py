"""Makes tensors meta by default, like `torch.device("meta")` but without importing torch.compile.

The context that torch offers is wrapped for torch.compile and imports all of it on first use, which takes seconds; a
device that only needs the shapes of its model should not wait for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

__all__ = ["ShapeOnlyMode"]


class ShapeOnlyMode(TorchFunctionMode):
    """A context in which new tensors have a shape but no values, unless a device is given."""

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

"""The error that ends a run, in either world, when code that a device runs raises: a model, a loss, a part."""

from __future__ import annotations

import traceback

from potluck.user_code import describe_user_error

__all__ = ["DeviceError"]


class DeviceError(Exception):
    """Names the device and what was raised there; `trace` is the traceback on the device."""

    def __init__(self, device: str, problem: str, trace: str) -> None:
        self.device, self.trace = device, trace
        super().__init__(f"{device}: {problem}")

    @staticmethod
    def from_exception(device: str, error: BaseException) -> DeviceError:
        return DeviceError(device, describe_user_error(error), "".join(traceback.format_exception(error)))

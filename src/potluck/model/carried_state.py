"""What a device carries over from turn to turn: its codec's error feedback and its optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from potluck.model.codecs.codec_state import CodecState
from potluck.model.local_solvers import SolverState

__all__ = ["CarriedState"]

_OPTIMIZER = "optimizer."  # begins the names of the optimizer's tensors in a checkpoint


@dataclass
class CarriedState:
    """The state of one device; the optimizer's is replaced after a turn, never changed in place."""

    codec: CodecState | None = None
    optimizer: SolverState | None = None  # None where it is not kept, empty before the first turn

    def to_tensors(self) -> dict[str, Tensor]:
        """The state as tensors by name, for a checkpoint."""
        codec = {} if self.codec is None else self.codec.to_tensors()
        return {**codec, **{_OPTIMIZER + name: value for name, value in (self.optimizer or {}).items()}}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> CarriedState:
        """The reverse of `to_tensors`."""
        optimizer = {
            name.removeprefix(_OPTIMIZER): value for name, value in tensors.items() if name.startswith(_OPTIMIZER)
        }
        codec = CodecState.from_tensors(tensors) if "counts" in tensors else None
        return CarriedState(codec, optimizer or None)

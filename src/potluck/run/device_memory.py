"""How much memory a turn takes on a device, and the refusal of devices that have less, before the run.

    memory = vectors · parameters + buffers + frozen weights + batch · activations of a sample

`vectors` are the weights, the gradient and the update, one for each moment of the local optimizer (momentum 1, Adam 2),
and one for a codec that keeps what it leaves out. Activations are all that the layers compute, as the backward pass
needs them. Of a sub-model its own parameters count, and activations in proportion to the square root of its MACs, which
is at least its width. Samples, PyTorch itself and the operating system are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from potluck.errors import SettingError
from potluck.fleet import Device
from potluck.job import Job
from potluck.loops.backends import TurnIdentity
from potluck.loops.settings import Rounds
from potluck.model.codecs import DenseCodec
from potluck.model.frozen_weights import FrozenWeights
from potluck.model.layer_chain import LayerChain
from potluck.model.local_training import LocalSteps
from potluck.model.model_state import WeightLayout
from potluck.model.submodel_interface import SubmodelExtractor
from potluck.units import Bytes

__all__ = ["MemoryModel", "TurnMemory"]


@dataclass(frozen=True)
class TurnMemory:
    """What a turn takes, in bytes."""

    state_bytes: float  # of weights, gradients, updates and optimizer state
    sample_bytes: float  # of one sample's activations
    samples: int  # of the largest mini-batch

    @property
    def needed_bytes(self) -> float:
        return self.state_bytes + self.samples * self.sample_bytes

    def largest_batch(self, available: float) -> int:
        """The most samples of a mini-batch that fit; 0 if none does."""
        room = available - self.state_bytes
        if room < 0:
            return 0
        return self.samples if not self.sample_bytes else int(min(room // self.sample_bytes, 2**40))


class MemoryModel:
    """The memory of one job's turns."""

    def __init__(self, rounds: Rounds, chain: LayerChain, layout: WeightLayout, weights_scale: float = 1.0) -> None:
        """`weights_scale` is the size of the model that is charged, where a smaller one stands in for it."""
        self._rounds = rounds
        self._layout = layout
        self._weights_scale = weights_scale
        self._frozen_bytes = FrozenWeights.of_chain(chain, layout).nbytes
        self._macs = sum(layer.macs for layer in chain.layers)
        self._sample_bytes = float(sum(layer.activation_bytes for layer in chain.layers))
        self._vectors = _vector_count(rounds)

    def whole_model(self, samples: int) -> TurnMemory:
        """A turn that trains the whole model in mini-batches of this many samples."""
        return TurnMemory(self._state_bytes(self._layout), self._sample_bytes, samples)

    def turn(self, device: str, samples: int, extractor: SubmodelExtractor | None) -> TurnMemory:
        """A device's turn."""
        spec = None if extractor is None else extractor.select_submodel(TurnIdentity(device, 0, 0))
        if spec is None:
            return self.whole_model(samples)
        width = math.sqrt(min(1.0, sum(spec.macs) / self._macs)) if self._macs else 1.0
        return TurnMemory(self._state_bytes(spec.layout), width * self._sample_bytes, samples)

    def affordable_fraction(self, device: Device, samples: int) -> float:
        """The MACs of a sub-model that certainly fits, as a fraction of the whole model's; infinite if all of it fits.

        Neither parameters nor activations shrink more slowly than the square root of MACs.
        """
        whole = self.whole_model(samples)
        if whole.needed_bytes <= device.memory:
            return math.inf
        room, shrinks = device.memory - self._frozen_bytes, whole.needed_bytes - self._frozen_bytes
        return (max(0.0, room) / shrinks) ** 2 if shrinks else math.inf

    def check_devices(self, job: Job, samples_of: Callable[[str], int], extractor: SubmodelExtractor | None) -> None:
        """Raise SettingError for the first device that has too little memory for its turns."""
        whole = lru_cache(maxsize=64)(self.whole_model)
        for path, device in _iter_members(job):
            samples = samples_of(device.name)
            if whole(samples).needed_bytes <= device.memory:
                continue
            turn = self.turn(device.name, samples, extractor)
            if turn.needed_bytes > device.memory:
                raise SettingError(f"{path}.memory", self._refusal(device, turn))

    def _refusal(self, device: Device, turn: TurnMemory) -> str:
        is_whole = turn.state_bytes == self._state_bytes(self._layout)
        kind = "the model" if is_whole else "its sub-model"
        needed, state = _format_size(turn.needed_bytes), _format_size(turn.state_bytes)
        largest = turn.largest_batch(device.memory)
        if largest:
            advice = f"a batch of at most {largest} fits"
        elif is_whole:
            advice = "use a recipe with sub-models, such as heterofl, or a pipeline, or leave the device out"
        else:
            advice = "allow smaller sub-models, use a smaller batch, or leave the device out"
        return (
            f"{device.name} has {_format_size(device.memory)}, but training {kind} in batches of {turn.samples} takes"
            f" {needed}, {state} of it for weights, gradient, update and optimizer state; {advice}"
        )

    def _state_bytes(self, layout: WeightLayout) -> float:
        params, buffers = layout.param_bounds[-1] * layout.itemsize, layout.buffer_bounds[-1] * layout.itemsize
        return self._weights_scale * (self._vectors * params + buffers) + self._frozen_bytes


def _vector_count(rounds: Rounds) -> int:
    moments = 0
    if isinstance(rounds.local, LocalSteps):
        moments = sum(rounds.local.traits.moments.values())
    holds_model = not isinstance(rounds.pull_codec, DenseCodec)
    return 3 + moments + (rounds.codec.new_state() is not None) + holds_model


def _iter_members(job: Job) -> Iterator[tuple[str, Device]]:
    """Every device with the path of its table."""
    groups = [index for index, group in enumerate(job.fleet.devices) for _ in range(group.count)]
    for index, device in zip(groups, job.fleet.members, strict=True):
        yield f"fleet.devices[{index}]", device


def _format_size(nbytes: float) -> str:
    """Three digits are enough: `1.53 GB`."""
    for unit in ("GB", "MB", "kB"):
        if nbytes >= Bytes.units[unit]:
            return f"{nbytes / Bytes.units[unit]:.3g} {unit}"
    return f"{nbytes:.0f} B"

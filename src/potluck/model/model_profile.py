"""What each layer costs on a device, measured there or derived from MACs and the device's speed; saved as JSON.

Planners and the simulated world know a model by its profile alone, so it also says where one may cut.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from potluck.atomic_file import write_atomically
from potluck.errors import DataError, ModelError
from potluck.model.layer_chain import Layer, LayerChain
from potluck.model.layer_timing import MeasuredTimes, module_device, time_layers, time_whole_model
from potluck.model.training_costs import BACKWARD_PER_FORWARD, forward_flops

__all__ = [
    "CutProfile",
    "LayerProfile",
    "ModelProfile",
    "ProfileTotals",
    "derive_profile",
    "load_profile",
    "measure_profile",
]


Count = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Progress = Callable[[int, int], None]


class LayerProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layer: output bytes and MACs per sample, seconds for the profile's batch."""

    name: str
    param_bytes: Count
    buffer_bytes: Count
    output_bytes: Count
    macs: Count
    forward_s: Amount
    backward_s: Amount
    spread: Amount = 0.0
    """Interquartile range over median of forward + backward."""


class CutProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A legal cut: after which layer, and the bytes that cross it per sample and direction."""

    after: Count
    bytes: Count


class ProfileTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over all layers."""

    param_bytes: int
    buffer_bytes: int
    macs: int
    forward_s: float
    backward_s: float


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model's layers on one device at one batch size."""

    format: Literal["potluck-profile-1"] = "potluck-profile-1"
    model: str
    batch: Annotated[int, msgspec.Meta(ge=1)]
    device: str
    source: Literal["measured", "derived"]
    layers: Annotated[tuple[LayerProfile, ...], msgspec.Meta(min_length=1)]
    cuts: tuple[CutProfile, ...] = ()
    agreement: Amount = 1.0
    """The measured sum of the layers' seconds divided by the measured seconds of a whole step."""
    note: str = ""

    def __post_init__(self) -> None:
        if any(cut.after >= len(self.layers) - 1 for cut in self.cuts):
            raise ValueError(f"a cut must be after one of the layers 0 to {len(self.layers) - 2}")

    @property
    def totals(self) -> ProfileTotals:
        """Sums over all layers."""
        return ProfileTotals(
            param_bytes=sum(layer.param_bytes for layer in self.layers),
            buffer_bytes=sum(layer.buffer_bytes for layer in self.layers),
            macs=sum(layer.macs for layer in self.layers),
            forward_s=math.fsum(layer.forward_s for layer in self.layers),
            backward_s=math.fsum(layer.backward_s for layer in self.layers),
        )

    def scaled_to_batch(self, batch: int) -> ModelProfile:
        """The same model at another batch size, with seconds in proportion; exact for derived profiles only."""
        factor = batch / self.batch
        layers = tuple(
            msgspec.structs.replace(layer, forward_s=layer.forward_s * factor, backward_s=layer.backward_s * factor)
            for layer in self.layers
        )
        return msgspec.structs.replace(self, batch=batch, layers=layers)

    def save(self, path: Path | str) -> None:
        """Write the profile as JSON; the file is complete or absent."""
        try:
            write_atomically(Path(path), msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")
        except OSError as error:
            raise DataError(f"cannot write the profile {path}: {error.strerror}") from error


def load_profile(path: Path | str) -> ModelProfile:
    """Load a profile that `save` wrote; DataError if it is anything else."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=ModelProfile)
    except OSError as error:
        raise DataError(f"cannot read the profile {path}: {error.strerror}; make one with `potluck profile`") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a profile: {error}; make one with `potluck profile`") from error


def derive_profile(
    chain: LayerChain,
    batch: int,
    flops_per_s: float,
    *,
    bytes_per_s: float = math.inf,
    model: str = "",
    device: str = "",
) -> ModelProfile:
    """Seconds from MACs and a speed: forward 2·MACs·batch/speed, backward twice that.

    A layer without MACs (an embedding) only moves memory: it takes its output's bytes over `bytes_per_s`, by default 0.
    """
    _check_batch(chain, batch)
    if not flops_per_s > 0 or not bytes_per_s > 0:
        raise ModelError("a profile needs a speed above zero")
    rows = []
    for layer in chain.layers:
        work, speed = (forward_flops(layer.macs), flops_per_s) if layer.macs else (layer.output_bytes, bytes_per_s)
        forward_s = work * batch / speed
        rows.append(_layer_profile(layer, forward_s, BACKWARD_PER_FORWARD * forward_s))
    return _build_profile(chain, batch, rows, model=model, device=device or f"{flops_per_s:g} FLOP/s", source="derived")


def measure_profile(
    chain: LayerChain,
    batch: int,
    *,
    repeats: int = 10,
    warmup: int = 3,
    progress: Progress | None = None,
    model: str = "",
) -> ModelProfile:
    """Median times on this device; an untraceable model is timed as a whole and divided by MACs."""
    _check_batch(chain, batch)
    if repeats < 1 or warmup < 0:
        raise ModelError("measuring needs at least one repeat")
    if chain.recording is None:
        forward, backward, agreement = _split_by_macs(
            chain, time_whole_model(chain, batch, warmup + repeats, progress)[warmup:]
        )
    else:
        forward, backward, agreement = _layer_times(time_layers(chain, batch, warmup + repeats, progress)[warmup:])
    rows = [_measured_layer(*layer) for layer in zip(chain.layers, forward, backward, strict=True)]
    device = str(module_device(chain.module))
    profile = _build_profile(chain, batch, rows, model=model, device=device, source="measured")
    return msgspec.structs.replace(profile, agreement=agreement)


RunTimes = list[tuple[float, ...]]


def _layer_times(runs: list[MeasuredTimes]) -> tuple[RunTimes, RunTimes, float]:
    """The seconds of every layer in each run, and the median ratio of their sum to the whole step."""
    forward = list(zip(*(run.forward for run in runs), strict=True))
    backward = list(zip(*(run.backward for run in runs), strict=True))
    # Each run is compared with the step just after it, since a busy machine slows both.
    return forward, backward, statistics.median(run.layers_to_whole for run in runs)


def _split_by_macs(chain: LayerChain, runs: list[tuple[float, float]]) -> tuple[RunTimes, RunTimes, float]:
    weights = [float(layer.macs) for layer in chain.layers]
    if not any(weights):
        weights = [float(layer.param_bytes) for layer in chain.layers]
    fractions = [weight / sum(weights) for weight in weights]
    forward = [tuple(fraction * run[0] for run in runs) for fraction in fractions]
    backward = [tuple(fraction * run[1] for run in runs) for fraction in fractions]
    return forward, backward, 1.0


def _measured_layer(layer: Layer, forward: Sequence[float], backward: Sequence[float]) -> LayerProfile:
    both = [sum(pair) for pair in zip(forward, backward, strict=True)]
    middle = statistics.median(both)
    low, _, high = statistics.quantiles(both, n=4, method="inclusive") if len(both) > 1 else (middle,) * 3
    spread = (high - low) / middle if middle else 0.0
    return _layer_profile(layer, statistics.median(forward), statistics.median(backward), spread)


def _layer_profile(layer: Layer, forward_s: float, backward_s: float, spread: float = 0.0) -> LayerProfile:
    return LayerProfile(
        name=layer.name,
        param_bytes=layer.param_bytes,
        buffer_bytes=layer.buffer_bytes,
        output_bytes=layer.output_bytes,
        macs=layer.macs,
        forward_s=forward_s,
        backward_s=backward_s,
        spread=spread,
    )


def _build_profile(
    chain: LayerChain,
    batch: int,
    rows: Sequence[LayerProfile],
    *,
    model: str,
    device: str,
    source: Literal["measured", "derived"],
) -> ModelProfile:
    return ModelProfile(
        model=model or type(chain.module).__name__,
        batch=batch,
        device=device,
        source=source,
        layers=tuple(rows),
        cuts=tuple(CutProfile(cut.after, cut.bytes + cut.constant_bytes) for cut in chain.cuts),
        note=chain.note,
    )


def _check_batch(chain: LayerChain, batch: int) -> None:
    if batch < 1:
        raise ModelError(f"cannot profile a batch of {batch}; use at least 1")

"""Estimates how long each device takes for each layer: by nominal figures, measured costs and what stages report.

    nominal     relative layer costs (MACs, or measured once by the central device) at the fleet's nominal speeds
    slowness    measured over estimated seconds of a device's batches; follows every change of speed
    per layer   the seconds of the layers that a device has run; others follow from the devices that ran them

All seconds are those of a whole batch, forward and backward.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from potluck.fleet import Device
from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.planning.layer_cost_fit import LayerCostFit, fit_layer_costs
from potluck.planning.online_estimates import ChangeDetector, NoisyEstimate

__all__ = ["ComputeEstimates", "MeasuredLayers"]

_SLOWNESS_GAIN = 0.3  # weight of the newest batch in the mean of a device's slowness
_MAX_QUIET_NOISE = 0.2  # relative; above it a device's slowness is the median of its newest batches
_LAYER_RUNS = 5  # of which the median counts as a layer's seconds
_LEAST_RUNS = 3  # until a layer counts as known: the first ones are slow on a real machine


class MeasuredLayers(NamedTuple):
    """Seconds of a batch in each layer, measured on one device."""

    forward: Sequence[float]
    backward: Sequence[float]

    @property
    def both(self) -> list[float]:
        return [forward + backward for forward, backward in zip(self.forward, self.backward, strict=True)]


class ComputeEstimates:
    """The seconds of each layer on each device, as known so far."""

    def __init__(
        self, fleet: Mapping[str, Device], costs: PipelineCosts, batch_samples: int, learns_layers: bool = True
    ) -> None:
        self._learns_layers = learns_layers
        layers = range(costs.layer_count)
        forward = [costs.stage_forward_flop(layer, layer, batch_samples) for layer in layers]
        backward = [costs.stage_backward_flop(layer, layer, batch_samples) for layer in layers]
        self._reference = MeasuredLayers(forward, backward)  # relative
        self._nominal_s = {name: sum(self._reference.both) / device.flops for name, device in fleet.items()}
        self.slowness: dict[str, float] = {}  # measured over estimated seconds
        self._change_detectors: dict[str, ChangeDetector] = {}
        self._noise: dict[str, NoisyEstimate] = {}  # of the slowness
        self._runs: dict[str, dict[int, deque[float]]] = {}  # seconds per layer at slowness 1
        self._fit: dict[str, float] | None = None
        self._fitted_costs: Sequence[float] = self._reference.both

    # --- observations ----------------------------------------------------------------------------------------------

    def set_reference(self, device: str, measured: MeasuredLayers) -> None:
        """Use the seconds that a device has measured for every layer; nominal speeds keep their ratios."""
        total_s = sum(measured.both)
        if not total_s > 0:
            return
        factor = total_s / self._nominal_s[device]
        self._nominal_s = {name: factor * seconds for name, seconds in self._nominal_s.items()}
        self._reference = measured
        if self._learns_layers:
            self.set_known_layers(device, measured)
        self._fit = None

    def set_known_layers(self, device: str, measured: MeasuredLayers) -> None:
        """Use these seconds of every layer on this device."""
        self._runs[device] = {
            layer: deque([seconds] * _LEAST_RUNS, _LAYER_RUNS) for layer, seconds in enumerate(measured.both)
        }
        self._fit = None

    def observe_batch(self, device: str, layers: range, seconds: float, layer_s: Sequence[float] = ()) -> bool:
        """Learn from the time of a batch and, where measured, of its layers; whether something has changed.

        The slowness is a running mean, which restarts when a change is detected. Where batches vary a lot, it is the
        median of the newest ones.
        """
        if self.nominal_batch_s(device, layers[0], layers[-1]) <= 0 or seconds <= 0:
            return False
        if self._learns_layers and len(layer_s) == len(layers) and sum(layer_s) > 0:
            known = self._known_layers(device)
            if self._observe_layers(device, layers, layer_s):
                return True
            if known and not known.keys() >= set(layers):
                return False  # some layers are new to the device: nobody can say yet whether they or it are slow
        slowness = seconds / self.nominal_batch_s(device, layers[0], layers[-1])
        noise = self._noise.setdefault(device, NoisyEstimate())
        noise.observe(slowness)
        before = self.slowness.setdefault(device, 1.0)
        has_changed = self._change_detectors.setdefault(device, ChangeDetector()).detect_change(before, slowness)
        if noise.noise > _MAX_QUIET_NOISE:
            self.slowness[device] = noise.median
        else:
            self.slowness[device] = slowness if has_changed else before + _SLOWNESS_GAIN * (slowness - before)
        self._fit = None
        return has_changed

    def _observe_layers(self, device: str, layers: range, layer_s: Sequence[float]) -> bool:
        """Store the seconds of layers; whether layers have become known that were not."""
        known = self._known_layers(device)
        had_any = bool(known)
        both = [(known[layer], seconds) for layer, seconds in zip(layers, layer_s, strict=True) if layer in known]
        expected_s, seconds_s = (sum(values) for values in zip(*both, strict=True)) if both else (0.0, 0.0)
        factor = seconds_s / expected_s if expected_s > 0 and seconds_s > 0 else self.slowness.get(device, 1.0)
        runs = self._runs.setdefault(device, {})
        for layer, seconds in zip(layers, layer_s, strict=True):
            runs.setdefault(layer, deque(maxlen=_LAYER_RUNS)).append(seconds / (factor if had_any else 1.0))
        self._fit = None
        if len(self._known_layers(device)) == len(known):
            return False
        if not had_any:  # what was slowness compared with the nominal speed is in the layers' seconds from now on
            self.slowness[device] = 1.0
            self._noise.pop(device, None)
            self._change_detectors.pop(device, None)
        return True

    def forget_device(self, device: str) -> None:
        """Drop what is known of a device; it may return as another machine."""
        for table in (self.slowness, self._change_detectors, self._noise, self._runs):
            table.pop(device, None)
        self._fit = None

    # --- estimates -------------------------------------------------------------------------------------------------

    def layer_seconds(self, device: str) -> list[float]:
        """Seconds of a batch in each layer on a device at its present speed."""
        slowness = self._slowness_of(device)
        return [slowness * seconds for seconds in self._layer_seconds_at_one(device)]

    def forward_fraction(self, layer: int) -> float:
        """The forward pass's fraction of a layer's seconds."""
        forward, backward = self._reference.forward[layer], self._reference.backward[layer]
        return forward / (forward + backward) if forward + backward > 0 else 0.0

    def nominal_batch_s(self, device: str, first: int, last: int) -> float:
        """Seconds of a batch on some layers at slowness 1."""
        known, layers = self._known_layers(device), range(first, last + 1)
        if all(layer in known for layer in layers):
            return sum(known[layer] for layer in layers)
        return sum(self._layer_seconds_at_one(device)[first : last + 1])

    @property
    def has_layer_times(self) -> bool:
        """Whether some device's seconds are known layer by layer."""
        return any(self._known_layers(device) for device in self._runs)

    def has_run(self, device: str, layers: range) -> bool:
        """Whether the seconds of all these layers on a device are known; always if layers are not told apart."""
        return not self._learns_layers or self._known_layers(device).keys() >= set(layers)

    def speed_uncertainty(self, devices: Iterable[str]) -> float:
        """The largest relative standard error of these devices' speeds; 0 where batches hardly vary."""
        noises = [self._noise[device] for device in devices if device in self._noise]
        return max((each.uncertainty for each in noises if each.noise > _MAX_QUIET_NOISE), default=0.0)

    def _layer_seconds_at_one(self, device: str) -> list[float]:
        fit, known = self._fitted(), self._known_layers(device)
        if not known:
            factor = self._nominal_s[device] / (sum(self._fitted_costs) or 1.0)
        else:
            factor = fit[device] / self._slowness_of(device)
        return [known.get(layer, factor * cost) for layer, cost in enumerate(self._fitted_costs)]

    def _slowness_of(self, device: str) -> float:
        """A device that was not observed yet is assumed to be as slow, over nominal, as others are."""
        if device in self.slowness or self._known_layers(device):
            return self.slowness.get(device, 1.0)
        ratios = [
            self.slowness[name] * sum(self._layer_seconds_at_one(name)) / self._nominal_s[name]
            for name in self.slowness
        ]
        return statistics.median(ratios) if len(ratios) > 1 else 1.0

    def _known_layers(self, device: str) -> dict[int, float]:
        """The seconds, at slowness 1, of the layers that a device has run often enough."""
        runs = self._runs.get(device, {})
        return {layer: statistics.median(seconds) for layer, seconds in runs.items() if len(seconds) >= _LEAST_RUNS}

    def _fitted(self) -> dict[str, float]:
        """The factor of each device with known layers; also fits the costs of the layers."""
        if self._fit is None:
            known = {device: self._known_layers(device) for device in self._runs}
            present = [
                {layer: self.slowness.get(device, 1.0) * seconds for layer, seconds in layers.items()}
                for device, layers in known.items()
            ]
            fit = LayerCostFit(self._reference.both, [])
            if any(present):
                fit = fit_layer_costs(self._reference.both, present)
            self._fitted_costs = fit.costs
            self._fit = dict(zip(known, fit.factors, strict=False))
        return self._fit

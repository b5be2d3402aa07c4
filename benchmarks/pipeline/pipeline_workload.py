"""MobileNetV2 on CIFAR-10 pictures in batches of 128, with seconds per layer as they were measured.

The seconds in mobilenet-v2-cifar.toml are the least of 40 measurements on one core of a shared x86 machine (batch 32,
scaled to 128), so that the machine's other work does not show; bytes come from the network itself. The reference device
is that core; a device of capacity c takes c times as long for everything.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

import torch

from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.model import zoo
from potluck.model.layer_chain import trace_layers
from potluck.model.model_state import WeightLayout
from potluck.run.pipeline_setup import pipeline_chain_costs

__all__ = ["BATCH", "measured_chain_costs"]

BATCH = 128


@cache
def measured_chain_costs() -> PipelineCosts:
    """The chain; a device of capacity 1 has 1 FLOP/s, so that seconds stand where FLOP do."""
    with torch.device("meta"):
        module = zoo.build_model("mobilenet-v2-cifar", classes=10)
    chain = trace_layers(module, (3, 32, 32))
    layout = WeightLayout.of_module(module, [(layer.parameters, layer.buffers) for layer in chain.layers])
    derived = pipeline_chain_costs(chain, layout, moments=1)
    measured = tomllib.loads(resources.files(__package__).joinpath("mobilenet-v2-cifar.toml").read_text())
    return PipelineCosts(
        forward_flop=[ms / 1000 / measured["batch"] for ms in measured["forward_ms"]],
        backward_flop=[ms / 1000 / measured["batch"] for ms in measured["backward_ms"]],
        cut_bytes_per_sample=derived.cut_bytes_per_sample,
        param_bytes=derived.param_bytes,
        buffer_bytes=derived.buffer_bytes,
        moments=1,
        activation_bytes=derived.activation_bytes,
    )

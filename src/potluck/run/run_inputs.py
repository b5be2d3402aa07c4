"""Digests of the model and the data of a run, kept as `inputs.json`, so that it is not resumed with others.

They are facts in words, so that a refusal says what differs. Data in memory is hashed in full. Of other data only the
sizes and a few samples are read, so that it may be larger than memory; a stream's samples may be others the next time,
and only a warning says so.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from potluck.atomic_file import write_atomically
from potluck.data import Dataset
from potluck.errors import DataError, PotluckWarning, RunError
from potluck.run.prepared_job import PreparedJob

__all__ = ["INPUTS_FILE", "RunInputs", "check_run_inputs", "describe_inputs", "write_run_inputs"]

INPUTS_FILE = "inputs.json"

_FORMAT = 2
_ADDED_FACTS = {2: ("values of all training samples", "values of all test samples")}  # by the format that added them
_PROBED_SAMPLES = 8
_PROBED_VALUES = 4096
_MAX_SHOWN = 3
_DIGEST_CHARACTERS = 16


class RunInputs(msgspec.Struct, kw_only=True):
    """What a run is made of: facts by name, and a digest of each kind."""

    format: int = _FORMAT
    model: dict[str, str]
    data: dict[str, str]
    streams: dict[str, str] = {}  # what may change without harm
    digests: dict[str, str] = {}


def describe_inputs(prepared: PreparedJob) -> RunInputs:
    """The facts of a prepared job; of data that is not in memory a few samples are read."""
    module, data = prepared.module, prepared.data
    model = {"layers and shapes": prepared.model_digest} if module is None else _describe_model(module)
    facts, streams = ({}, {}) if data is None else _describe_data(data)
    return RunInputs(
        model=model, data=facts, streams=streams, digests={"model": _digest_facts(model), "data": _digest_facts(facts)}
    )


def write_run_inputs(folder: Path, inputs: RunInputs) -> None:
    write_atomically(folder / INPUTS_FILE, msgspec.json.format(msgspec.json.encode(inputs)) + b"\n")


def check_run_inputs(folder: Path, inputs: RunInputs) -> bool:
    """Refuse to resume a run with another model or other data.

    Returns whether the file is as these would be: a run of an older version has fewer digests, or none.
    """
    try:
        before = msgspec.json.decode((folder / INPUTS_FILE).read_bytes(), type=RunInputs)
    except FileNotFoundError:
        return False
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        warnings.warn(
            f"{folder / INPUTS_FILE} cannot be read ({error}), so the model and the data are not compared with those"
            " that the run began with",
            PotluckWarning,
            stacklevel=2,
        )
        return False
    if before.format > _FORMAT:
        return False
    data = _without_facts_after(before.format, inputs.data)
    for what, old, new in (("another model", before.model, inputs.model), ("other data", before.data, data)):
        if old and new and old != new:
            raise RunError(
                f"{folder} began with {what}: {_describe_differences(old, new)}; resume it with the same, or start a"
                " new run"
            )
    if before.streams != inputs.streams:
        changes = _describe_differences(before.streams, inputs.streams)
        warnings.warn(f"{folder} began with another stream: {changes}", PotluckWarning, stacklevel=2)
    return before.format == _FORMAT


def _without_facts_after(format: int, facts: Mapping[str, str]) -> dict[str, str]:
    """Without what a file of an older format does not say."""
    added = {name for later, names in _ADDED_FACTS.items() if later > format for name in names}
    return {name: fact for name, fact in facts.items() if name not in added}


def _describe_differences(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    changed = [name for name in {**new, **old} if old.get(name) != new.get(name)]
    texts = [_describe_change(name, old.get(name), new.get(name)) for name in changed[:_MAX_SHOWN]]
    return ", ".join(texts) + (f" and {len(changed) - _MAX_SHOWN} more" if len(changed) > _MAX_SHOWN else "")


def _describe_change(name: str, old: str | None, new: str | None) -> str:
    if old is None:
        return f"{name} ({new}) is new"
    return f"{name} is missing" if new is None else f"{name}: now {new}, then {old}"


def _digest_facts(facts: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(sorted(facts.items())).encode()).hexdigest()


# --- the model -------------------------------------------------------------------------------------------------------


def _describe_model(module: nn.Module) -> dict[str, str]:
    """Names, shapes and dtypes of all tensors, samples of frozen ones, and PyTorch's layers with their settings."""
    facts = {}
    for name, tensor in module.state_dict().items():
        facts[f"tensor {name!r}"] = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad and not parameter.is_meta:
            facts[f"frozen values of {name!r}"] = _probe_tensor(parameter)
    for name, layer in module.named_modules():
        if type(layer).__module__.startswith("torch.nn.") and not any(True for _ in layer.children()):
            facts[f"layer {name!r}"] = f"{type(layer).__name__}({layer.extra_repr()})"
    return facts


def _probe_tensor(tensor: Tensor) -> str:
    """A digest of some of the values."""
    flat = tensor.detach().reshape(-1)
    chosen = flat[:: max(1, flat.numel() // _PROBED_VALUES)].contiguous().cpu()
    content = b"" if not chosen.numel() else chosen.view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(content).hexdigest()[:_DIGEST_CHARACTERS]


# --- the data --------------------------------------------------------------------------------------------------------


def _describe_data(data: Dataset) -> tuple[dict[str, str], dict[str, str]]:
    """The facts that must stay, and those of streams."""
    facts, streams = {"classes": _shorten(", ".join(data.classes))}, dict[str, str]()
    for part, samples in (("training", data.train), ("test", data.test)):
        if samples.is_stream:
            streams[f"first {part} sample"] = _probe_samples(samples, 1)
            facts[f"{part} samples"] = "a stream"
            continue
        facts[f"{part} samples"] = f"{len(samples):,}"
        if len(samples):
            facts[f"{part} sample"] = _describe_sample(samples)
            contents = _probe_samples(samples, _PROBED_SAMPLES)
            if not samples.needs_rng or contents == _probe_samples(samples, _PROBED_SAMPLES):
                facts[f"contents of the {part} samples"] = contents  # unless every reading gives others
            if (digest := samples.content_digest()) is not None:
                facts[f"values of all {part} samples"] = digest
    return facts, streams


def _describe_sample(samples: Any) -> str:
    try:
        leaves = tree_flatten(samples.stored_batch(np.arange(1)))[0]
    except DataError:
        return "cannot be read"
    return _shorten(", ".join(_describe_leaf(leaf) for leaf in leaves))


def _describe_leaf(leaf: Any) -> str:
    if not isinstance(leaf, Tensor):
        return type(leaf).__name__
    return f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape[1:])}"


def _probe_samples(samples: Any, count: int) -> str:
    """A digest of some samples, read one by one: they may differ in shape."""
    total = hashlib.sha256()
    last = 0 if samples.is_stream else len(samples) - 1
    for index in sorted({int(index) for index in np.linspace(0, last, count)}):
        try:
            leaves = tree_flatten(samples.stored_batch(np.array([index])))[0]
        except DataError:
            return "cannot be read"
        for leaf in leaves:
            total.update(_describe_leaf(leaf).encode())
            total.update((_probe_tensor(leaf) if isinstance(leaf, Tensor) else repr(leaf)).encode())
    return total.hexdigest()[:_DIGEST_CHARACTERS]


def _shorten(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:160]}… {hashlib.sha256(text.encode()).hexdigest()[:8]}"

"""An assembled network as one file: its numbers as safetensors, its description in the same file's header.

load("assembled.safetensors")                                      from Python
model = "potluck.model.decoupled:load", options = {path = "…"}     in a job
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from potluck.errors import ModelError
from potluck.model.decoupled.grouped_network import AssembledNetwork, GroupedNetworkSpec

__all__ = ["load", "save"]

_KEY = "potluck.decoupled"


def save(network: AssembledNetwork, path: str | Path) -> Path:
    """Write aside and rename: the file is whole or absent."""
    path = Path(path)
    aside = path.with_name(f"{path.name}.partial")
    words = msgspec.json.encode(network.spec).decode()
    numbers = {name: value.detach().contiguous() for name, value in network.state_dict().items()}
    save_file(numbers, aside, metadata={_KEY: words})
    aside.replace(path)
    return path


def load(path: str | Path) -> AssembledNetwork:
    """The network in a file; ModelError if it is none or does not fit its own description."""
    try:
        with safe_open(path, framework="pt") as file:
            words = (file.metadata() or {}).get(_KEY)
            numbers = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"cannot read the network in {path}: {error}") from None
    if words is None:
        raise ModelError(f"{path} holds no assembled network; write one with potluck.model.decoupled.save")
    return _rebuild_network(words, numbers, path)


def _rebuild_network(words: str, numbers: dict[str, torch.Tensor], path: str | Path) -> AssembledNetwork:
    """First without memory, so that a description cannot ask for more than the file holds."""
    try:
        with torch.device("meta"):
            network = AssembledNetwork(msgspec.json.decode(words, type=GroupedNetworkSpec))
        network.load_state_dict(numbers, assign=True)
    except (msgspec.DecodeError, RuntimeError, IndexError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise ModelError(f"the network in {path} does not fit its description: {reason[-1].strip()}") from None
    return network.eval()

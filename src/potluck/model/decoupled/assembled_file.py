"""Saves an assembled network as one safetensors file whose header describes its structure.

load("assembled.safetensors")                                      from Python
model = "potluck.model.decoupled:load", options = {path = "…"}     in a job
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from potluck.atomic_file import write_atomically
from potluck.errors import ModelError
from potluck.model.decoupled.grouped_network import AssembledNetwork, GroupedNetworkSpec
from potluck.model.shape_only import ShapeOnlyMode

__all__ = ["load", "save"]

_HEADER_KEY = "potluck.decoupled"


def save(network: AssembledNetwork, path: str | Path) -> Path:
    """Write the network; the file is complete or absent."""
    path = Path(path)
    header = msgspec.json.encode(network.spec).decode()
    state = {name: value.detach().contiguous() for name, value in network.state_dict().items()}
    write_atomically(path, to_bytes(state, metadata={_HEADER_KEY: header}))
    return path


def load(path: str | Path) -> AssembledNetwork:
    """The network in a file; ModelError if the file holds none or contradicts its own header."""
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_HEADER_KEY)
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"cannot read the network in {path}: {error}") from None
    if header is None:
        raise ModelError(f"{path} does not contain an assembled network; write one with potluck.model.decoupled.save")
    return _rebuild_network(header, state, path)


def _rebuild_network(header: str, state: dict[str, torch.Tensor], path: str | Path) -> AssembledNetwork:
    """Build without allocating memory, so that a header cannot ask for more than the file holds."""
    try:
        with ShapeOnlyMode():
            network = AssembledNetwork(msgspec.json.decode(header, type=GroupedNetworkSpec))
        network.load_state_dict(state, assign=True)
    except (msgspec.DecodeError, RuntimeError, IndexError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise ModelError(f"the network in {path} does not match its header: {reason[-1].strip()}") from None
    return network.eval()

"""Loads optimizers of torch.optim's interface by name, and finds out by trying them how they may be used.

An optimizer that treats every weight alone gives the same result on one flat vector as on the tensors of a model. The
vector is faster, and can be cut between layers and gathered for sub-models. Others see their tensors in their shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from potluck.errors import SettingError
from potluck.settings import load_object

__all__ = [
    "BuildOptimizer",
    "OptimizerScope",
    "OptimizerTraits",
    "build_by_name",
    "check_optimizer_options",
    "load_optimizer_class",
    "probe_once",
    "probe_optimizer",
]

BuildOptimizer = Callable[[Sequence[Tensor]], torch.optim.Optimizer]

_STEPS = 8  # enough for RAdam, which changes its rule in its sixth step
_SHAPES: Sequence[tuple[int, ...]] = ((3, 5), (7,), (2, 3, 2, 2))
_MATRICES: Sequence[tuple[int, ...]] = ((3, 5), (4, 6))  # for optimizers that take nothing else


class OptimizerScope(IntEnum):
    """The most that a step of one weight depends on."""

    WEIGHT = 0  # nothing else: the step may be taken on any slice of the weights
    TENSOR = 1  # the other weights of its tensor: the step may be taken tensor by tensor
    MODEL = 2  # the whole model


class OptimizerTraits(NamedTuple):
    """What was observed of an optimizer."""

    scope: OptimizerScope
    moments: Mapping[
        str, bool
    ]  # its state of a parameter by name: whether it has the parameter's shape, or is a scalar
    has_numbers: bool  # whether its state has plain numbers among its tensors
    starts_at_zero: bool  # whether a state of zeros is the same as none


def load_optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """The class that `torch.optim.RMSprop` or `package.module:Class` names."""
    if not name.strip(".").count(".") and ":" not in name:
        raise SettingError("name", f"{name!r} says no module; write torch.optim.{name} or package.module:{name}")
    path = name if ":" in name else ":".join(name.rpartition(".")[::2])
    loaded = load_object(path, "name")
    if not (isinstance(loaded, type) and issubclass(loaded, torch.optim.Optimizer)):
        raise SettingError("name", f"{name!r} is not a torch.optim.Optimizer")
    return loaded


def build_by_name(name: str, params: Sequence[Tensor], lr: float, options: Mapping[str, Any]) -> torch.optim.Optimizer:
    """An optimizer of the named class."""
    arguments: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in options.items()
    }
    return load_optimizer_class(name)(params, lr=lr, **arguments)  # type: ignore[call-arg]


def check_optimizer_options(name: str, lr: float, options: Mapping[str, Any]) -> None:
    """Refuse arguments that the class does not take; for use in a setting's `__post_init__`."""
    if "lr" in options:
        raise SettingError("options.lr", "set the learning rate as `lr` beside `options`")
    try:
        built = build_by_name(name, [nn.Parameter(torch.zeros(2, 2))], lr, options)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, SettingError):
            raise
        raise SettingError("options", f"{name} refuses them: {str(error).splitlines()[0]}") from None
    if any("lr" not in group for group in built.param_groups):
        raise SettingError("name", f"{name} has no learning rate `lr` that a schedule could scale; choose another")


def probe_optimizer(build: BuildOptimizer) -> OptimizerTraits:
    """Try an optimizer on small tensors; ValueError says why it cannot be used at all."""
    shapes = _SHAPES
    try:
        together = _run_steps(build, _example_tensors(shapes))
    except ValueError:
        shapes = _MATRICES
        together = _run_steps(build, _example_tensors(shapes))
    state, flat = together.states[0], [torch.cat([tensor.reshape(-1) for tensor in _example_tensors(shapes)])]
    scope = OptimizerScope.MODEL
    if _gives_same_weights(build, _example_tensors(shapes), together.weights, one_by_one=True):
        by_weight = _gives_same_weights(build, flat, together.weights)
        scope = OptimizerScope.WEIGHT if by_weight else OptimizerScope.TENSOR
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return OptimizerTraits(
        scope,
        {name: value.shape == shapes[0] for name, value in sorted(tensors.items())},
        any(isinstance(value, int | float) for value in state.values()),
        _gives_same_weights(build, _example_tensors(shapes), together.weights, zeros=tensors),
    )


_probed: dict[str, OptimizerTraits] = {}


def probe_once(key: str, build: BuildOptimizer) -> OptimizerTraits:
    """As `probe_optimizer`, once in this process for all optimizers with the same key."""
    if key not in _probed:
        _probed[key] = probe_optimizer(build)
    return _probed[key]


class _Outcome(NamedTuple):
    weights: Tensor
    states: list[dict[str, Any]]


def _run_steps(
    build: BuildOptimizer,
    tensors: Sequence[Tensor],
    one_by_one: bool = False,
    zeros: Mapping[str, Tensor] | None = None,
) -> _Outcome:
    """Take some steps: with all tensors at once or in turn, from no state or from these moments set to zero."""
    params = [nn.Parameter(tensor) for tensor in tensors]
    generator = torch.Generator().manual_seed(1)
    optimizer = build(params)
    for param in params if zeros is not None else ():
        optimizer.state[param] = {
            name: torch.zeros_like(param.detach()) if value.dim() else torch.zeros_like(value)
            for name, value in (zeros or {}).items()
        }
    for _ in range(_STEPS):
        gradient = torch.randn(sum(map(torch.numel, params)), generator=generator)
        gradients = torch.split(gradient, [param.numel() for param in params])
        for chosen in [[index] for index in range(len(params))] if one_by_one else [list(range(len(params)))]:
            for index, param in enumerate(params):
                param.grad = gradients[index].view_as(param).clone() if index in chosen else None
            _take_step(optimizer)
    return _Outcome(
        torch.cat([param.detach().reshape(-1) for param in params]), [optimizer.state[param] for param in params]
    )


def _take_step(optimizer: torch.optim.Optimizer) -> None:
    name = type(optimizer).__name__
    try:
        optimizer.step()
    except TypeError as error:
        if "closure" not in str(error):
            raise
        raise ValueError(f"{name} computes the loss again within a step (closure); choose another") from None
    except RuntimeError as error:
        raise ValueError(f"{name} cannot take a step: {str(error).splitlines()[0]}") from None


def _gives_same_weights(build: BuildOptimizer, tensors: Sequence[Tensor], expected: Tensor, **options: Any) -> bool:
    try:
        return torch.equal(_run_steps(build, tensors, **options).weights, expected)
    except (ValueError, RuntimeError, KeyError, TypeError, IndexError):
        return False


def _example_tensors(shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(sum(map(math.prod, shapes)), generator=generator)
    sizes = [math.prod(shape) for shape in shapes]
    return [part.view(shape).clone() for part, shape in zip(torch.split(vector, sizes), shapes, strict=True)]

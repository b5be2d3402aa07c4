"""Solvers that step a device's weights with an optimizer of torch: on the flat vector, or on views of it in shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from potluck.model.local_solvers import ALL_ENTRIES, SolverState, SteppingSolver, StepSettings
from potluck.model.model_replica import ModelReplica
from potluck.model.submodel_interface import ExtractedSubmodel
from potluck.model.torch_optimizers import BuildOptimizer

__all__ = ["FlatOptimizerSolver", "TensorOptimizerSolver"]

_NUMBER = ":number"  # ends the name of a state that the optimizer keeps as a plain number


class FlatOptimizerSolver(SteppingSolver):
    """Steps the flat vector with an optimizer of torch that treats every weight alone.

    A slice or a sub-model is stepped by an optimizer of its own with the state of its entries. The other entries keep
    their value and state; scalars of the state, such as Adam's step count, are those of the whole vector.
    """

    def __init__(self, settings: StepSettings, replica: ModelReplica, build: BuildOptimizer) -> None:
        super().__init__(settings, replica)
        self._build = build
        self._param = nn.Parameter(self._weights)
        self._optimizer: torch.optim.Optimizer
        self._loaded: SolverState = {}
        self._before: dict[str, Any] | None = None  # the state before a step that is taken slice by slice

    def load_state(self, state: SolverState) -> None:
        self._loaded = state

    def start(self) -> None:
        super().start()
        self._optimizer = self._build([self._param])
        if self._loaded:
            self._optimizer.state[self._param] = _unpack_numbers(self._loaded)

    def save_state(self) -> SolverState:
        return _pack_numbers(self._state)

    @property
    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._optimizer.state[self._param]
        return state

    def _step_entries(self, direction: Tensor, entries: slice) -> None:
        if entries == ALL_ENTRIES:
            self._param.grad = direction
            self._optimizer.step()
            self._before = None
            return
        if not len(direction):
            return
        if self._before is None:
            self._before = {
                name: value if _is_like(value, self._weights) else _copied(value) for name, value in self._state.items()
            }
        before = {
            name: value[entries] if _is_like(value, self._weights) else _copied(value)
            for name, value in self._before.items()
        }
        after = self._step_part(self._weights[entries], direction, before)
        self._merge_state(after, direction, lambda vector, value: vector[entries].copy_(value))

    def _step_gathered(self, submodel: ExtractedSubmodel, direction: Tensor) -> None:
        before = {
            name: submodel.gather(value) if _is_like(value, self._weights) else _copied(value)
            for name, value in self._state.items()
        }
        after = self._step_part(submodel.replica.state.params, direction, before)
        self._merge_state(after, direction, lambda vector, value: submodel.scatter(value, vector))

    def _step_part(self, weights: Tensor, direction: Tensor, state: dict[str, Any]) -> dict[str, Any]:
        """Step some weights in place from this state; returns the state after it."""
        param = nn.Parameter(weights)
        optimizer = self._build([param])
        if state:
            optimizer.state[param] = state
        param.grad = direction
        optimizer.step()
        after: dict[str, Any] = optimizer.state[param]
        return after

    def _merge_state(self, after: dict[str, Any], like: Tensor, write: Callable[[Tensor, Tensor], object]) -> None:
        state = self._state
        for name, value in after.items():
            if _is_like(value, like):
                if not isinstance(state.get(name), Tensor):
                    state[name] = torch.zeros_like(self._weights)
                write(state[name], value)
            else:
                state[name] = value


class TensorOptimizerSolver(SteppingSolver):
    """Steps views of the flat vector in the shapes of the model's tensors; slices must consist of whole tensors."""

    def __init__(self, settings: StepSettings, replica: ModelReplica, build: BuildOptimizer) -> None:
        super().__init__(settings, replica)
        self._entries = replica.layout.params
        self._params = [
            nn.Parameter(self._weights[entry.start : entry.stop].view(entry.shape)) for entry in self._entries
        ]
        self._build = build
        self._optimizer: torch.optim.Optimizer
        self._loaded: SolverState = {}

    def load_state(self, state: SolverState) -> None:
        self._loaded = state

    def start(self) -> None:
        super().start()
        self._optimizer = self._build(self._params)
        states: dict[int, dict[str, Tensor]] = {}
        for name, value in self._loaded.items():
            index, _, moment = name.partition(".")
            states.setdefault(int(index), {})[moment] = value
        for number, moments in states.items():
            self._optimizer.state[self._params[number]] = _unpack_numbers(moments)

    def save_state(self) -> SolverState:
        return {
            f"{index}.{name}": value
            for index, param in enumerate(self._params)
            for name, value in _pack_numbers(self._optimizer.state[param]).items()
        }

    def _step_entries(self, direction: Tensor, entries: slice) -> None:
        first = entries.start or 0
        stop = first + len(direction)
        for entry, param in zip(self._entries, self._params, strict=True):
            chosen = first <= entry.start and entry.stop <= stop
            param.grad = direction[entry.start - first : entry.stop - first].view(entry.shape) if chosen else None
        self._optimizer.step()


def _is_like(value: Any, vector: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == vector.shape


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _pack_numbers(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """An optimizer's state as tensors only."""
    packed = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    numbers = {name: value for name, value in state.items() if isinstance(value, int | float)}
    return packed | {
        name + _NUMBER: torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
        for name, value in numbers.items()
    }


def _unpack_numbers(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The reverse of `_pack_numbers`, with copies of the tensors."""
    return {
        name.removesuffix(_NUMBER): value.item() if name.endswith(_NUMBER) else value.clone()
        for name, value in state.items()
    }

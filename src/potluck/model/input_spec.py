"""What a model's inputs look like, and how the model is called with them.

Inputs are a tensor or any nesting of tuples, lists and dicts of tensors (PyTorch's pytree); the first dimension of
every tensor is the batch. A dict becomes keyword arguments, and a tuple positional ones, if the model's forward takes
them; everything else is passed as one argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten

from potluck.errors import ModelError
from potluck.user_code import describe_user_error, raised_by_user_code

__all__ = ["InputBinding", "InputSpec", "batch_size", "call_model", "misfit_error"]


@dataclass(frozen=True)
class InputSpec:
    """The shape and dtype of each tensor of one sample, and how the tensors are nested."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    tree: TreeSpec

    @staticmethod
    def of_shape(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> InputSpec:
        """The spec of samples that are single tensors."""
        return InputSpec((tuple(shape),), (dtype,), tree_flatten(torch.empty(0))[1])

    @staticmethod
    def of_batch(inputs: Any) -> InputSpec:
        """The spec of the samples of a batch."""
        leaves, tree = tree_flatten(inputs)
        for leaf in leaves:
            if not isinstance(leaf, Tensor) or leaf.ndim == 0:
                raise ModelError(f"inputs must be tensors with the batch as first dimension, got {_describe(leaf)}")
        return InputSpec(tuple(tuple(leaf.shape[1:]) for leaf in leaves), tuple(leaf.dtype for leaf in leaves), tree)

    @property
    def is_tensor(self) -> bool:
        """Whether a sample is one tensor."""
        return self.tree.is_leaf()

    @property
    def description(self) -> str:
        """The spec in words, for messages."""
        if self.is_tensor:
            return str(self.shapes[0])
        named = [f"{str(dtype)[6:]} {shape}" for shape, dtype in zip(self.shapes, self.dtypes, strict=True)]
        return str(tree_unflatten(named, self.tree))

    def with_floats(self, dtype: torch.dtype) -> InputSpec:
        """The same with all floating-point tensors of this dtype."""
        return InputSpec(self.shapes, tuple(dtype if own.is_floating_point else own for own in self.dtypes), self.tree)

    def meta_batch(self, size: int) -> Any:
        """A batch with shapes and no values."""
        return self._make_batch(size, "meta")

    def zero_batch(self, size: int, device: torch.device | str = "cpu") -> Any:
        """A batch of zeros, which are valid indices too."""
        return tree_map_only(Tensor, torch.zeros_like, self._make_batch(size, device))

    def flatten(self, inputs: Any) -> tuple[Tensor, ...]:
        """The tensors of a batch, in order."""
        return tuple(tree_flatten(inputs)[0])

    def unflatten(self, tensors: Sequence[Tensor]) -> Any:
        """The reverse of `flatten`."""
        return tree_unflatten(list(tensors), self.tree)

    def _make_batch(self, size: int, device: torch.device | str) -> Any:
        leaves = [
            torch.empty((size, *shape), dtype=dtype, device=device)
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]
        return tree_unflatten(leaves, self.tree)


@dataclass(frozen=True)
class InputBinding:
    """How inputs become arguments of forward: `keywords` by these names, `count` positional ones, or as one."""

    keywords: tuple[str, ...] = ()
    count: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each argument."""
        if self.keywords:
            return self.keywords
        return ("sample",) if self.count is None else tuple(f"sample_{index}" for index in range(self.count))

    def arguments(self, inputs: Any) -> tuple[Any, ...]:
        """The arguments in order, keyword ones included."""
        if self.keywords:
            return tuple(inputs[name] for name in self.keywords)
        return (inputs,) if self.count is None else tuple(inputs)

    def call(self, function: Any, arguments: Sequence[Any]) -> Any:
        """Call a forward with `arguments`."""
        if self.keywords:
            return function(**dict(zip(self.keywords, arguments, strict=True)))
        return function(*arguments)

    @staticmethod
    def of_inputs(module: nn.Module, inputs: Any) -> InputBinding:
        """How this model takes these inputs."""
        if isinstance(inputs, dict) and inputs and all(isinstance(key, str) for key in inputs):
            return _bind_keywords(type(module).forward, tuple(inputs))
        if isinstance(inputs, tuple) and inputs:
            return _bind_positional(type(module).forward, len(inputs))
        return _AS_ONE


_AS_ONE = InputBinding()
_ADVICE = {  # by what PyTorch says
    "argument #1 'indices' to have": "; an embedding needs tokens in int64 or int32 (uint8 inputs become floats)",
    "omplex": "; give the real and the imaginary part as two channels (torch.view_as_real)",
}


def call_model(module: nn.Module, inputs: Any) -> Any:
    """The model's output for a batch of inputs."""
    if isinstance(inputs, Tensor):
        return module(inputs)
    binding = InputBinding.of_inputs(module, inputs)
    return binding.call(module, binding.arguments(inputs))


def batch_size(inputs: Any) -> int:
    """The number of samples in a batch."""
    return len(inputs) if isinstance(inputs, Tensor) else len(tree_flatten(inputs)[0][0])


def misfit_error(error: Exception, inputs: Any) -> ModelError:
    """A model or loss failed on these inputs, or on some of this spec.

    It failed in the user's own code, or in a library that was given what does not fit.
    """
    if isinstance(error, ModelError):
        return error
    spec = inputs if isinstance(inputs, InputSpec) else InputSpec.of_batch(inputs)
    reason, shape = describe_user_error(error), spec.description
    if raised_by_user_code(error):
        return ModelError(f"the model or its loss fails: {reason}")
    advice = next((advice for sign, advice in _ADVICE.items() if sign in str(error)), "")
    return ModelError(f"the model does not fit the data (inputs of shape {shape}): {reason}{advice}")


@lru_cache(maxsize=256)
def _bind_keywords(forward: Any, keys: tuple[str, ...]) -> InputBinding:
    parameters = _parameters(forward)
    named = {name for name, kind in parameters.items() if kind in (_BOTH, _KEYWORD)}
    if any(kind == _EXTRA_KEYWORDS for kind in parameters.values()) and (named & set(keys) or not named):
        return InputBinding(keywords=keys)
    return InputBinding(keywords=keys) if set(keys) <= named else _AS_ONE


@lru_cache(maxsize=256)
def _bind_positional(forward: Any, count: int) -> InputBinding:
    parameters = _parameters(forward)
    positional = [name for name, kind in parameters.items() if kind in (_BOTH, _POSITIONAL)]
    takes_more = any(kind == _EXTRA_ARGUMENTS for kind in parameters.values())
    return InputBinding(count=count) if takes_more or len(positional) >= count else _AS_ONE


_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
_BOTH = inspect.Parameter.POSITIONAL_OR_KEYWORD
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_EXTRA_ARGUMENTS = inspect.Parameter.VAR_POSITIONAL
_EXTRA_KEYWORDS = inspect.Parameter.VAR_KEYWORD


def _parameters(forward: Any) -> dict[str, Any]:
    """The kinds of forward's parameters by name, without `self`."""
    return {name: parameter.kind for name, parameter in list(inspect.signature(forward).parameters.items())[1:]}


def _describe(leaf: Any) -> str:
    return f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"

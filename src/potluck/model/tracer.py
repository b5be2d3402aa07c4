"""A tracer that can answer questions about sizes.

A module without children is one node, and so is everything of torch.nn that is not a container. Where the code
asks for a number (`if x.dim() == 3`, `range(x.size(1))`), the answer is looked up on meta tensors; an answer
that depends on the batch size or on the data cannot be traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import Attribute, TraceError
from torch.utils._pytree import tree_leaves

from potluck.model.costs import sample, tensors
from potluck.model.hollow import Hollow
from potluck.model.rehearsal import BATCHES, Rehearsal

__all__ = ["Tracer"]

CONTAINERS = (
    nn.Sequential,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)


FACTORIES = ("arange", "empty", "eye", "full", "ones", "rand", "randn", "zeros")


class _Answers:
    """What a proxy needs so that code may ask it for a number."""

    tracer: Any
    node: Any

    def __len__(self) -> int:
        return int(self.tracer.length(self.node))

    def __index__(self) -> int:
        value = self.tracer.settle(self.node)
        if not isinstance(value, int):
            raise TraceError(f"a {type(value).__name__} is used as a number")
        return value

    def __int__(self) -> int:
        return self.__index__()


class _KnownAttribute(_Answers, Attribute):
    """`x.shape` and the like."""


class _Known(_Answers, fx.Proxy):
    """A value of the traced forward."""

    def __getattr__(self, k: str) -> Any:
        return _KnownAttribute(self, k)


class Tracer(fx.Tracer):
    """Writes a forward down; reads sizes off meta tensors where the code branches on them."""

    proxy_buffer_attributes = True

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self._samples = [sample(shape, batch, dtype) for batch in BATCHES]
        self._rehearsals: list[Rehearsal] = []
        self._settling = False

    def write_down(self, bones: nn.Module) -> fx.Graph:
        """The graph of a skeleton's forward."""
        with _recorded_factories(self):
            self.trace(bones)
        self._forget_questions()
        return self.graph

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, CONTAINERS):
            return False
        ours = str(getattr(type(m).forward, "__module__", "")).startswith("torch.nn.")
        return ours or isinstance(m, torch.jit.ScriptModule) or next(m.children(), None) is None

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """One input; every further argument of forward keeps its default."""
        return root_fn, [self.root, self.create_proxy("placeholder", "sample", (), {})]

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Known(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.settle(obj.node))

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        return iter([obj[position] for position in range(self.length(obj.node))])  # type: ignore[index]

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return forward(*args, **kwargs) if self._settling else super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        return attr_val if self._settling else super().getattr(attr, attr_val, parameter_proxy_cache)

    @property
    def asked(self) -> bool:
        """Did the code ask for any number, so that the graph may hold for some sizes only?"""
        return bool(self._rehearsals)

    def settle(self, node: fx.Node) -> Any:
        """The value of a node that is the same whatever the batch and the data."""
        values = self._values(node)
        if any(True for _ in tensors(values)):
            raise TraceError("its control flow depends on the values of a tensor")
        if values[0] != values[1]:
            raise TraceError("its control flow depends on the batch size")
        return values[0]

    def length(self, node: fx.Node) -> int:
        """How many items a node has, whatever the batch."""
        first, second = (len(value) for value in self._values(node))
        if first != second:
            raise TraceError("its control flow depends on the batch size")
        return first

    def _forget_questions(self) -> None:
        """Erase what was only looked up to decide something, or fetched in vain."""
        answers = self._rehearsals[0].env if self._rehearsals else {}
        for node in reversed(self.graph.nodes):
            asked = isinstance(answers.get(node), bool | int | torch.Size | torch.device | torch.dtype)
            if not node.users and (asked or node.op == "get_attr"):
                self.graph.erase_node(node)

    def _values(self, wanted: fx.Node) -> list[Any]:
        if not self._rehearsals:
            self._rehearsals = [Rehearsal(self.root, self.graph) for _ in BATCHES]
        self._settling = True
        try:
            with Hollow():
                return [self._play(*pair)[wanted] for pair in zip(self._rehearsals, self._samples, strict=True)]
        finally:
            self._settling = False

    def _play(self, rehearsal: Rehearsal, batch: torch.Tensor) -> dict[fx.Node, Any]:
        for node in self.graph.nodes:
            if node.op == "placeholder":
                rehearsal.env[node] = batch
            elif node not in rehearsal.env:
                rehearsal.env[node] = rehearsal.run_node(node)
        return rehearsal.env


@contextmanager
def _recorded_factories(tracer: Tracer) -> Iterator[None]:
    """Let `torch.zeros(x.size(0), 4)` be written down too: without a tensor among its arguments fx does not see it."""
    plain = {name: getattr(torch, name) for name in FACTORIES}
    try:
        for name, factory in plain.items():
            setattr(torch, name, _recorded(tracer, factory))
        yield
    finally:
        for name, factory in plain.items():
            setattr(torch, name, factory)


def _recorded(tracer: Tracer, factory: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(item, fx.Proxy) for item in tree_leaves((args, kwargs))):
            return tracer.create_proxy("call_function", factory, args, kwargs)
        return factory(*args, **kwargs)

    return make

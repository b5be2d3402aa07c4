"""A torch.fx tracer that knows sizes.

A module without children is one node, and so is everything of torch.nn that is not a container. Where the code
asks for a number (`if x.dim() == 3`, `range(x.size(1))`), the tracer computes it on meta tensors, and where it asks
for values of tensors that are constant, on real ones; a forward whose control flow depends on the batch size or on the
data cannot be traced.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import Attribute, TraceError
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from potluck.model.constant_values import ConstantValues, DependsOnDataError
from potluck.model.flop_counter import iter_tensors
from potluck.model.input_spec import InputBinding
from potluck.model.meta_interpreter import PROBE_BATCH_SIZES, MetaInterpreter
from potluck.model.shape_only import ShapeOnlyMode

__all__ = ["SizeTracer", "is_leaf_module"]

CONTAINERS = (
    nn.Sequential,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)


FACTORIES = ("arange", "empty", "eye", "full", "ones", "rand", "randn", "zeros")


class _SizeQueries:
    """Lets code use a proxy as a number or ask for its length."""

    tracer: Any
    node: Any

    def __len__(self) -> int:
        return int(self.tracer.concrete_length(self.node))

    def __index__(self) -> int:
        value = self.tracer.concrete_value(self.node)
        if not isinstance(value, int):
            raise TraceError(f"a {type(value).__name__} is used as a number")
        return value

    def __int__(self) -> int:
        return self.__index__()


class _SizedAttribute(_SizeQueries, Attribute):
    """`x.shape` and the like."""


class _SizedProxy(_SizeQueries, fx.Proxy):
    """A value of the traced forward."""

    def __getattr__(self, k: str) -> Any:
        return _SizedAttribute(self, k)


class SizeTracer(fx.Tracer):
    """Traces a forward; where the code branches on sizes, takes them from meta tensors."""

    proxy_buffer_attributes = True

    def __init__(self, binding: InputBinding, arguments: Sequence[Sequence[Any]]) -> None:
        """`arguments` are forward's, on meta tensors, for both batch sizes."""
        super().__init__()
        self._binding = binding
        self._arguments = arguments
        self._interpreters: list[MetaInterpreter] = []
        self._interpreting = False
        self._constant_nodes: set[fx.Node] = set()

    def trace_graph(self, meta_module: nn.Module) -> fx.Graph:
        """The graph of a meta module's forward."""
        with _record_factories(self):
            self.trace(meta_module)
        self._erase_queries()
        return self.graph

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_leaf_module(m)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """The inputs; every further argument of forward keeps its default."""

        def call_forward(root: nn.Module, *values: Any) -> Any:
            return self._binding.call(partial(root_fn, root), values)

        names = self._binding.names
        return call_forward, [self.root, *(self.create_proxy("placeholder", name, (), {}) for name in names)]

    def create_arg(self, a: Any) -> Any:
        """Refuse a dict with a class of its own, such as one whose entries are attributes: a graph keeps plain ones."""
        if isinstance(a, dict) and type(a) not in (dict, OrderedDict):
            raise TraceError(f"it returns or passes a {type(a).__name__}")
        return super().create_arg(a)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _SizedProxy(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.concrete_value(obj.node))

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        return iter([obj[position] for position in range(self.concrete_length(obj.node))])  # type: ignore[index]

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return forward(*args, **kwargs) if self._interpreting else super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        return attr_val if self._interpreting else super().getattr(attr, attr_val, parameter_proxy_cache)

    @property
    def asked_sizes(self) -> bool:
        """Whether the code asked for any number, so that the graph may be valid for some sizes only."""
        return bool(self._interpreters)

    @property
    def compared_constants(self) -> bool:
        """Whether the code asked for values of tensors, so that it cannot run on meta tensors."""
        return bool(self._constant_nodes)

    def concrete_value(self, node: fx.Node) -> Any:
        """The value of a node; TraceError if it depends on the batch size or the data."""
        values = self._interpret_node(node)
        if any(True for _ in iter_tensors(values)):
            return self._constant_value(node)
        if values[0] != values[1]:
            raise TraceError("its control flow depends on the batch size")
        return values[0]

    def _constant_value(self, node: fx.Node) -> Any:
        first, second = (interpreter.env for interpreter in self._interpreters)
        constants = ConstantValues(self.root, first, second)
        self._interpreting = True
        try:
            value = constants.constant_value(node)
        except DependsOnDataError:
            raise TraceError("its control flow depends on the values of a tensor") from None
        finally:
            self._interpreting = False
        self._constant_nodes |= constants.nodes
        return value

    def concrete_length(self, node: fx.Node) -> int:
        """The number of items in a node's value; TraceError if it depends on the batch size."""
        first, second = (len(value) for value in self._interpret_node(node))
        if first != second:
            raise TraceError("its control flow depends on the batch size")
        return first

    def _erase_queries(self) -> None:
        """Remove nodes that only answered a question about sizes, and unused attribute reads."""
        values = self._interpreters[0].env if self._interpreters else {}
        for node in reversed(self.graph.nodes):
            is_size = isinstance(values.get(node), bool | int | torch.Size | torch.device | torch.dtype)
            if not node.users and (is_size or node.op == "get_attr" or node in self._constant_nodes):
                self.graph.erase_node(node)

    def _interpret_node(self, wanted: fx.Node) -> list[Any]:
        if not self._interpreters:
            self._interpreters = [MetaInterpreter(self.root, self.graph) for _ in PROBE_BATCH_SIZES]
        self._interpreting = True
        try:
            with ShapeOnlyMode():
                return [
                    self._run_pending_nodes(*pair)[wanted]
                    for pair in zip(self._interpreters, self._arguments, strict=True)
                ]
        finally:
            self._interpreting = False

    def _run_pending_nodes(self, interpreter: MetaInterpreter, arguments: Sequence[Any]) -> dict[fx.Node, Any]:
        remaining = iter(arguments)
        nodes = list(self.graph.nodes)
        for node in nodes:
            if node.op == "placeholder":
                interpreter.env[node] = next(remaining)
            elif node not in interpreter.env:
                interpreter.env[node] = interpreter.run_node(node)
        if len(self.graph.nodes) > len(nodes):
            raise TraceError("it assigns a computed value to an attribute and reads it again")
        return interpreter.env


def is_leaf_module(module: nn.Module) -> bool:
    """Whether a call of this module is one node of a graph."""
    if isinstance(module, CONTAINERS):
        return False
    if getattr(module, "is_graph_leaf", False):
        return True
    built_in = str(getattr(type(module).forward, "__module__", "")).startswith("torch.nn.")
    return built_in or isinstance(module, torch.jit.ScriptModule) or next(module.children(), None) is None


@contextmanager
def _record_factories(tracer: SizeTracer) -> Iterator[None]:
    """Record calls like `torch.zeros(x.size(0), 4)` too, which fx misses because no argument is a tensor.

    torch's transformers check that a mask is a tensor, which a proxy is not.
    """
    originals = {name: getattr(torch, name) for name in FACTORIES}
    mask_dtype = functional._none_or_dtype
    try:
        for name, factory in originals.items():
            setattr(torch, name, _recording_factory(tracer, factory))
        functional._none_or_dtype = lambda input: input.dtype if isinstance(input, fx.Proxy) else mask_dtype(input)
        yield
    finally:
        functional._none_or_dtype = mask_dtype
        for name, factory in originals.items():
            setattr(torch, name, factory)


def _recording_factory(tracer: SizeTracer, factory: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(item, fx.Proxy) for item in tree_leaves((args, kwargs))):
            return tracer.create_proxy("call_function", factory, args, kwargs)
        return factory(*args, **kwargs)

    return make

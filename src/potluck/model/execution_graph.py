"""Turns the recorded runs of a forward into one graph.

The forward runs once for each of several batch sizes: a number that differs between the runs becomes an expression of
the batch size, and runs that do not make the same calls cannot be recorded. Constants are computed once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from potluck.model.execution_recorder import (
    AttributeRef,
    ExecutionRecorder,
    InputDevice,
    InputRef,
    NotRecordable,
    RecordedCall,
    ValueRef,
    is_random_call,
)
from potluck.model.input_spec import InputBinding, InputSpec
from potluck.model.meta_interpreter import PROBE_BATCH_SIZES

__all__ = ["is_model_output", "record_execution"]

BATCH_SIZES = (*PROBE_BATCH_SIZES, 7)  # the third checks what was concluded from the first two

DIFFERS = "its control flow depends on the batch size"


def record_execution(
    module: nn.Module, meta_module: nn.Module, inputs: InputSpec
) -> tuple[fx.Graph, dict[str, Tensor], InputBinding]:
    """The graph of the forward of `meta_module`, a copy of `module`; its constants by name; how it takes its inputs."""
    fixed = _fixed_buffers(module)
    binding = InputBinding.of_inputs(module, inputs.meta_batch(1))
    recorders = []
    for size in BATCH_SIZES:
        arguments = binding.arguments(inputs.meta_batch(size))
        if not all(isinstance(argument, Tensor) for argument in arguments):
            raise NotRecordable("its inputs are nested")
        recorder = ExecutionRecorder(meta_module, arguments, fixed)
        recorder.record(lambda arguments=arguments: binding.call(meta_module, arguments))  # type: ignore[misc]
        recorders.append(recorder)
    builder = _GraphBuilder(recorders)
    return builder.build(binding.names), builder.constants, binding


def is_model_output(node: fx.Node) -> bool:
    """Whether a node only puts the outputs into a `ModelOutput`."""
    return node.op == "call_function" and isinstance(node.target, type)


def _fixed_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Buffers that are not saved with the model: they are computed from its config, such as frequencies."""
    saved = module.state_dict(keep_vars=True).keys()
    fixed = {name: buffer for name, buffer in module.named_buffers() if name not in saved}
    # A model without values is never run, so its constants may have any.
    return {
        name: torch.zeros_like(buffer, device="cpu") if buffer.is_meta else buffer for name, buffer in fixed.items()
    }


class _GraphBuilder:
    """Merges the runs at several batch sizes into one graph."""

    def __init__(self, recorders: Sequence[ExecutionRecorder]) -> None:
        self._recorders = recorders
        self._graph = fx.Graph()
        self._inputs: list[fx.Node] = []
        self._nodes: dict[int, fx.Node] = {}
        self._items: dict[tuple[int, int], fx.Node] = {}
        self._attributes: dict[str, fx.Node] = {}
        self._batch: fx.Node | None = None
        self._device: fx.Node | None = None
        self._foldable: set[int] = set()
        self.constants: dict[str, Tensor] = {}

    def build(self, input_names: Sequence[str]) -> fx.Graph:
        runs = [recorder.calls for recorder in self._recorders]
        if len({len(calls) for calls in runs}) > 1:
            raise NotRecordable(DIFFERS)
        self._inputs = [self._graph.placeholder(name) for name in input_names]
        for index, calls in enumerate(zip(*runs, strict=True)):
            if self._is_foldable(calls):
                self._foldable.add(index)
            else:
                self._add_node(index, calls)
        self._add_output([recorder.output for recorder in self._recorders])
        self._erase_unused()
        return self._graph

    def _erase_unused(self) -> None:
        """Remove calls whose results nobody uses, unless they change something in place or use random numbers."""
        for node in reversed(self._graph.nodes):
            name = str(getattr(node.target, "__name__", node.target))
            acts = name.endswith("_") or name in ("setitem", "out") or "out" in node.kwargs or is_random_call(name)
            if not node.users and node.op in ("call_function", "call_method", "get_attr") and not acts:
                self._graph.erase_node(node)

    def _add_node(self, index: int, calls: Sequence[RecordedCall]) -> None:
        first = calls[0]
        if any((call.op, call.target) != (first.op, first.target) for call in calls):
            raise NotRecordable(DIFFERS)
        args = self._merge([call.args for call in calls])
        kwargs = self._merge([call.kwargs for call in calls])
        node = self._graph.create_node(first.op, first.target, tuple(args), kwargs)
        self._nodes[index] = self._graph.call_method("detach", (node,)) if first.detached else node

    def _is_foldable(self, calls: Sequence[RecordedCall]) -> bool:
        """Whether the result of a call is the same in all runs, whatever the inputs."""
        first = calls[0]
        if not all(call.constant and (call.args, call.kwargs) == (first.args, first.kwargs) for call in calls):
            return False
        refs = [value for value in tree_leaves((first.args, first.kwargs)) if isinstance(value, ValueRef)]
        return all(ref.call in self._foldable for ref in refs)

    def _add_output(self, outputs: Sequence[Any]) -> None:
        first = outputs[0]
        if isinstance(first, tuple) and first and isinstance(first[0], type):
            entries = self._merge([entries for _, entries in outputs])
            self._graph.output(self._graph.call_function(first[0], (), entries))
        else:
            self._graph.output(self._merge(list(outputs)))

    def _merge(self, values: Sequence[Any]) -> Any:
        first = values[0]
        if any(type(value) is not type(first) for value in values):
            raise NotRecordable(DIFFERS)
        if type(first) in (tuple, list):
            if len({len(value) for value in values}) > 1:
                raise NotRecordable(DIFFERS)
            return type(first)(self._merge(inner) for inner in zip(*values, strict=True))
        if type(first) is dict:
            return {key: self._merge([value[key] for value in values]) for key in first}
        if isinstance(first, slice):
            return slice(*(self._merge([getattr(value, end) for value in values]) for end in ("start", "stop", "step")))
        if type(first) is int and any(value != first for value in values):
            return self._batch_number(values)
        if any(value != first for value in values):
            raise NotRecordable(DIFFERS)
        return self._node_of(first)

    def _node_of(self, value: Any) -> Any:
        if isinstance(value, InputRef):
            return self._inputs[value.index]
        if isinstance(value, AttributeRef):
            if value.path not in self._attributes:
                self._attributes[value.path] = self._graph.create_node("get_attr", value.path)
            return self._attributes[value.path]
        if isinstance(value, ValueRef) and value.call in self._foldable:
            return self._constant_node(value)
        if isinstance(value, ValueRef):
            return self._nodes[value.call] if value.item is None else self._item_node(value.call, value.item)
        return self._device_node() if value is InputDevice else value

    def _constant_node(self, ref: ValueRef) -> fx.Node:
        result = self._recorders[0].calls[ref.call].value
        name = f"_tensor_constant{ref.call}" + ("" if ref.item is None else f"_{ref.item}")
        if name not in self.constants:
            value = result if ref.item is None else result[ref.item]
            self.constants[name] = value.detach()  # not an `nn.Buffer`, which a module would register
            self._attributes[name] = self._graph.create_node("get_attr", name)
        return self._attributes[name]

    def _item_node(self, call: int, item: int) -> fx.Node:
        if (call, item) not in self._items:
            self._items[call, item] = self._graph.call_function(operator.getitem, (self._nodes[call], item))
        return self._items[call, item]

    def _batch_number(self, values: Sequence[int]) -> fx.Node:
        """An expression for a number that grows with the batch size."""
        slope = values[1] - values[0]
        offset = values[0] - slope * BATCH_SIZES[0]
        if any(value != slope * batch + offset for value, batch in zip(values, BATCH_SIZES, strict=True)):
            raise NotRecordable("a size is no multiple of the batch size")
        if self._batch is None:
            self._batch = self._after_inputs(lambda: self._graph.call_method("size", (self._inputs[0], 0)))
        number = self._batch if slope == 1 else self._graph.call_function(operator.mul, (self._batch, slope))
        return number if not offset else self._graph.call_function(operator.add, (number, offset))

    def _device_node(self) -> fx.Node:
        if self._device is None:
            self._device = self._after_inputs(lambda: self._graph.call_function(getattr, (self._inputs[0], "device")))
        return self._device

    def _after_inputs(self, make: Callable[[], fx.Node]) -> fx.Node:
        with self._graph.inserting_after(self._inputs[-1]):
            return make()

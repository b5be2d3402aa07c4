"""Records what a forward calls while it runs on meta tensors, for models whose code cannot take proxies.

Every torch function that the code calls is recorded, and every call of a leaf module. A tensor that depends neither on
the inputs nor on the weights is constant (positions, causal masks): it is also computed for real, so that questions
about its values are answered. A question about the values of any other tensor ends the recording.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from potluck.model.flop_counter import iter_tensors
from potluck.model.meta_interpreter import storage_id
from potluck.model.shape_only import ShapeOnlyMode
from potluck.model.size_tracer import is_leaf_module

__all__ = [
    "AttributeRef",
    "ExecutionRecorder",
    "InputDevice",
    "InputRef",
    "NotRecordable",
    "RecordedCall",
    "ValueRef",
    "is_random_call",
    "is_transformers_model",
]

VALUE_QUERIES = ("__bool__", "__int__", "__float__", "__index__", "__contains__", "item", "tolist")

RANDOM = ("rand", "bernoulli", "multinomial", "normal", "uniform", "exponential", "poisson", "dropout")


class NotRecordable(Exception):  # noqa: N818
    """Why a run cannot be recorded as a graph."""


@dataclasses.dataclass(frozen=True)
class ValueRef:
    """The result of an earlier call, or one item of it."""

    call: int
    item: int | None = None


@dataclasses.dataclass(frozen=True)
class InputRef:
    """One tensor of the inputs."""

    index: int


@dataclasses.dataclass(frozen=True)
class AttributeRef:
    """A tensor that the module holds."""

    path: str


class InputDevice:
    """The device of the inputs."""


@dataclasses.dataclass
class RecordedCall:
    """One call, with tensors replaced by references."""

    op: str
    target: Any
    args: Any
    kwargs: Any
    detached: bool
    constant: bool  # it depends neither on the inputs nor on the weights
    value: Any = None  # of a constant call: its result on the CPU
    storages: frozenset[int] = frozenset()  # those of its result


def is_transformers_model(module: nn.Module) -> bool:
    """Whether a module, or one inside it, is a model of Hugging Face transformers."""
    return any(base.__module__.startswith("transformers.") for part in module.modules() for base in type(part).__mro__)


class ExecutionRecorder(TorchFunctionMode):
    """Records the calls of one run of a meta module; `fixed` are the values of its buffers that never change."""

    def __init__(self, meta_module: nn.Module, inputs: Sequence[Tensor], fixed: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.calls: list[RecordedCall] = []
        self.output: Any = None
        self._leaves = {path: part for path, part in meta_module.named_modules() if path and _is_leaf(part)}
        self._inside_leaf = 0
        self._fixed = fixed
        self._refs: dict[int, Any] = {id(tensor): AttributeRef(path) for path, tensor in _held_tensors(meta_module)}
        self._refs |= {id(tensor): InputRef(index) for index, tensor in enumerate(inputs)}
        self._alive: list[Any] = list(inputs)  # so that no two tensors have the same id

    def record(self, call: Callable[[], Any]) -> None:
        """Run the forward."""
        with ExitStack() as stack:
            for path, leaf in self._leaves.items():
                self._hook_leaf(path, leaf, stack)
            stack.enter_context(_transformers_traced(self))
            stack.enter_context(ShapeOnlyMode())
            stack.enter_context(self)
            output = call()
        self.output = self._output_refs(output)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if self._inside_leaf:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in VALUE_QUERIES and args and isinstance(args[0], Tensor):
            return self._answer_query(func, args, kwargs)
        versions = [(tensor, tensor._version) for tensor in iter_tensors([args, kwargs])]
        result = func(*args, **kwargs)
        changed = [tensor for tensor, version in versions if tensor._version != version]
        result = result if changed else _distinct(result, args)
        if name == "__set__":
            raise NotRecordable(f"it assigns to the {func.__self__.__name__} of a tensor")  # type: ignore[attr-defined]
        if name == "__get__":
            if isinstance(result, Tensor):
                self._add_call("call_function", getattr, (args[0], func.__self__.__name__), {}, result)  # type: ignore[attr-defined]
        elif result is None or any(True for _ in iter_tensors(result)):
            is_method = getattr(Tensor, name, None) is func and bool(args) and isinstance(args[0], Tensor)
            written = getattr(operator, name, None) if is_method and name.startswith("__") else None
            op, target = ("call_method", name) if is_method and written is None else ("call_function", written or func)
            self._add_call(op, target, args, kwargs, result)
            self._note_changes(changed)
        return result

    def depends_on_data(self, tensor: Any) -> bool:
        """Whether a tensor of this run depends on the inputs or the weights."""
        ref = self._refs.get(id(tensor))
        return ref is not None and not self._is_constant(ref)

    def _hook_leaf(self, path: str, leaf: nn.Module, stack: ExitStack) -> None:
        def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
            self._inside_leaf += 1

        def leave(_: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
            self._inside_leaf -= 1
            if self._inside_leaf:
                return result
            result = _distinct(result, args)
            self._add_call("call_module", path, args, kwargs, result)
            return result

        for handle in (
            leaf.register_forward_pre_hook(enter, with_kwargs=True, prepend=True),
            leaf.register_forward_hook(leave, with_kwargs=True),
        ):
            stack.callback(handle.remove)

    def _add_call(self, op: str, target: Any, args: Any, kwargs: Any, result: Any) -> None:
        taken = list(iter_tensors([args, kwargs]))
        detached = not torch.is_grad_enabled() and op != "call_module" and any(each.requires_grad for each in taken)
        refs = self._replace_tensors(args), self._replace_tensors(kwargs)
        constant = op != "call_module" and not is_random_call(target) and all(map(self._is_constant_tensor, taken))
        value = self._compute(op, target, *refs) if constant else None
        storages = frozenset(storage_id(tensor) for tensor in iter_tensors(result))
        index = len(self.calls)
        self.calls.append(RecordedCall(op, target, *refs, detached, constant, value, storages))
        self._alive.append(result)
        if isinstance(result, Tensor):
            self._refs[id(result)] = ValueRef(index)
        elif isinstance(result, tuple | list):
            for item, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._refs[id(part)] = ValueRef(index, item)
                elif any(True for _ in iter_tensors(part)):
                    raise NotRecordable(f"{target} returns nested tensors")
        elif result is not None:
            raise NotRecordable(f"{target} returns a {type(result).__name__}")

    def _note_changes(self, changed: Sequence[Tensor]) -> None:
        """A constant into which data is written is none any more."""
        if changed and not self.calls[-1].constant:
            written = {storage_id(tensor) for tensor in changed}
            for call in self.calls:
                if call.storages & written:
                    call.constant = False

    def _is_constant_tensor(self, tensor: Tensor) -> bool:
        return self._is_constant(self._refs[id(tensor)])

    def _is_constant(self, ref: Any) -> bool:
        if isinstance(ref, AttributeRef):
            return ref.path in self._fixed
        return isinstance(ref, ValueRef) and self.calls[ref.call].constant

    def _replace_tensors(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in self._refs:
                raise NotRecordable("a tensor comes from code that cannot be recorded")
            return self._refs[id(value)]
        if isinstance(value, torch.device) and value.type == "meta":
            return InputDevice
        if isinstance(value, torch.Size):
            return tuple(value)
        if type(value) in (tuple, list):
            return type(value)(self._replace_tensors(inner) for inner in value)
        if type(value) is dict:
            return {key: self._replace_tensors(inner) for key, inner in value.items()}
        if isinstance(value, slice) and not any(isinstance(end, Tensor) for end in _slice_ends(value)):
            return value
        plain = (bool, int, float, complex, str, torch.dtype, torch.device, torch.memory_format, torch.layout)
        if value is None or value is Ellipsis or isinstance(value, plain):
            return value
        raise NotRecordable(f"it passes a {type(value).__name__} to an operation")

    def _output_refs(self, output: Any) -> Any:
        """The output as references; of a ModelOutput, the entries that are tensors and its class."""
        if isinstance(output, dict) and dataclasses.is_dataclass(output):
            entries = {key: self._refs[id(value)] for key, value in output.items() if id(value) in self._refs}
            return (type(output), entries)
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(output)):
            raise NotRecordable("its output has no tensors")
        return self._replace_tensors(output)

    def _answer_query(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the code asks about the values of a tensor, if it is constant."""
        if not all(map(self._is_constant_tensor, iter_tensors(args))):
            raise NotRecordable("its control flow depends on the values of a tensor")
        return self._compute("call_function", func, self._replace_tensors(args), self._replace_tensors(kwargs))

    def _compute(self, op: str, target: Any, args: Any, kwargs: Any) -> Any:
        """The result of a call on constants; in the order of the calls, so that changes in place are seen."""
        args, kwargs = self._real_value(args), self._real_value(kwargs)
        with torch._C.DisableTorchFunction():  # neither recorded nor on meta tensors
            return getattr(Tensor, target)(*args, **kwargs) if op == "call_method" else target(*args, **kwargs)

    def _real_value(self, value: Any) -> Any:
        if isinstance(value, ValueRef):
            result = self.calls[value.call].value
            return result if value.item is None else result[value.item]
        if isinstance(value, AttributeRef):
            return self._fixed[value.path]
        if value is InputDevice:
            return torch.device("cpu")
        if type(value) in (tuple, list):
            return type(value)(self._real_value(inner) for inner in value)
        if type(value) is dict:
            return {key: self._real_value(inner) for key, inner in value.items()}
        return value


def _distinct(result: Any, args: tuple[Any, ...]) -> Any:
    """The result as an object of its own where a call returns its argument, as dropout does in evaluation."""
    if not isinstance(result, Tensor) or not any(result is argument for argument in args):
        return result
    with torch._C.DisableTorchFunction():
        return torch.ops.aten.alias.default(result)


def _slice_ends(value: slice) -> tuple[Any, Any, Any]:
    return value.start, value.stop, value.step


def _is_leaf(module: nn.Module) -> bool:
    """As for other models, but code without weights is recorded too: it often only makes constants."""
    built_in = str(type(module).__module__).startswith("torch.nn.")
    return is_leaf_module(module) and (built_in or any(True for _ in module.parameters()))


def is_random_call(target: Any) -> bool:
    """Whether a call, or one of this name, uses random numbers."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return any(word in name for word in RANDOM)


def _held_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, part in reversed(list(module.named_modules())):  # of several names of a tensor, the first is kept
        held = {**vars(part), **part._buffers, **part._parameters}
        for name, value in held.items():
            if isinstance(value, Tensor):
                yield f"{path}.{name}" if path else name, value


@contextmanager
def _transformers_traced(recorder: ExecutionRecorder) -> Iterator[None]:
    """Tell transformers which tensors may not be looked at, as it does for torch.export; it then skips shortcuts."""
    try:
        from transformers import PreTrainedModel, masking_utils
    except ImportError:
        yield
        return
    is_tracing, warn = masking_utils.is_tracing, PreTrainedModel.warn_if_padding_and_no_attention_mask
    masking_utils.is_tracing = lambda tensor=None: is_tracing(tensor) or recorder.depends_on_data(tensor)
    PreTrainedModel.warn_if_padding_and_no_attention_mask = lambda *_: None
    try:
        yield
    finally:
        masking_utils.is_tracing, PreTrainedModel.warn_if_padding_and_no_attention_mask = is_tracing, warn

"""What is known of a model's channels while it is being traced: where every tensor has them, and what they cost.

A tensor's channels lie along one axis: the second of a picture's, the last of a text's. Attention splits that axis
into heads and the features of each head; a head is kept or dropped as a whole.

    (batch, tokens, channels) ──▶ (batch, tokens, heads, features) ──▶ (batch, heads, tokens, features)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from torch import fx, nn

from potluck.errors import ModelError
from potluck.model.flop_counter import FLOPS_PER_MAC
from potluck.model.graph_recording import GraphRecording
from potluck.model.meta_interpreter import PROBE_BATCH_SIZES
from potluck.model.submodels.channel_sets import Channels, ChannelUnionFind

__all__ = [
    "ChannelFlow",
    "ChannelLayout",
    "MacTerm",
    "SizeFreeCall",
    "TensorChannels",
    "call_name",
    "is_transposed_linear",
]

SizeFreeCall = tuple[Callable[..., Any], tuple[Any, ...]]  # a function and what it takes after the tensor


@dataclass(frozen=True, slots=True)
class TensorChannels:
    """The channels along the axes of one parameter or buffer; None is an axis that is never narrowed.

    A layer's outputs are the rows of its weight and its inputs the columns, unless `inputs_first`.
    """

    rows: Channels
    columns: Channels | None = None
    inputs_first: bool = False


@dataclass(frozen=True, slots=True)
class MacTerm:
    """A layer's MACs per sample: `unit` for each connected pair of an output and an input channel."""

    unit: int
    rows: Channels
    columns: Channels | None


@dataclass(frozen=True, slots=True)
class ChannelLayout:
    """Where a tensor has its channels: along `axis`, or as heads along `axis` and their features along `inner`.

    Scores of attention have heads without features: `inner` is None, but `head_width` is not.
    """

    channels: Channels
    axis: int = 1
    head_width: int | None = None
    inner: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the axis is not split into heads."""
        return self.head_width is None

    def permuted(self, order: tuple[int, ...]) -> ChannelLayout:
        """After a permutation of the axes."""
        inner = None if self.inner is None else order.index(self.inner)
        return replace(self, axis=order.index(self.axis), inner=inner)


class ChannelFlow:
    """The channels of all tensors traced so far."""

    def __init__(self, recording: GraphRecording) -> None:
        self.sets = ChannelUnionFind()
        self.tensor_channels: dict[str, TensorChannels] = {}
        self.mac_terms: list[MacTerm] = []
        self.fixed_macs = 0
        self.size_free_calls: dict[str, SizeFreeCall] = {}  # nodes whose code names sizes, and what to call instead
        self.recording = recording
        self.parameter_names = {id(value): name for name, value in recording.meta_module.named_parameters()}
        self.layouts: dict[fx.Node, ChannelLayout] = {}
        self.layouts_in_tuple: dict[fx.Node, tuple[ChannelLayout, ...]] = {}

    # --- channels of tensors ---------------------------------------------------------------------------------------

    def traced_value(self, node: fx.Node) -> Any:
        fact = self.recording.facts.get(node)
        return None if fact is None else fact.value

    def is_droppable(self, node: fx.Node) -> bool:
        """Whether any channel of this tensor, or of a tensor in this tuple, may be dropped as far as is known."""
        layouts = [self.layouts[node]] if node in self.layouts else self.layouts_in_tuple.get(node, ())
        return any(self.sets.is_droppable(layout.channels) for layout in layouts)

    def input_layout(self, node: fx.Node) -> ChannelLayout:
        return self.layouts[node.all_input_nodes[0]]

    def channels_along(self, source: fx.Node, axis: int) -> Channels | None:
        """The channels of an axis; None if the tensor has droppable channels along another one."""
        layout, shape = self.layouts.get(source), self.traced_value(source).shape
        axis %= len(shape)
        if layout is not None and layout.is_plain and layout.axis == axis:
            return layout.channels
        return None if self.is_droppable(source) else self.sets.add_set(source.name, shape[axis], pinned=True)

    def input_channels(self, node: fx.Node) -> Channels:
        """The channels of the input's second axis, as pictures have them."""
        channels = self.channels_along(node.all_input_nodes[0], 1)
        if channels is None:
            self.raise_unsupported(node)
        return channels

    def pin_sources(self, node: fx.Node) -> None:
        """Forbid dropping any channel of a node's inputs."""
        for source in node.all_input_nodes:
            if source in self.layouts:
                self.sets.pin(self.layouts[source].channels)
            for layout in self.layouts_in_tuple.get(source, ()):
                self.sets.pin(layout.channels)

    def trace_opaque(self, node: fx.Node, axis: int = 1) -> ChannelLayout:
        """The output of an unknown operation, of which nothing is dropped; nor may anything be of a picture before it.

        In transformers, whose residual stream is never narrowed, what precedes an unknown operation stays whole.
        """
        for source in node.all_input_nodes:
            if self.is_droppable(source) and self._is_picture(source):
                self.raise_unsupported(node)
        self.pin_sources(node)
        self.fixed_macs += self.node_macs(node)
        return self.pinned_layout(node, axis)

    def pinned_layout(self, node: fx.Node, axis: int) -> ChannelLayout:
        shape = self.traced_value(node).shape
        size = shape[axis] if -len(shape) <= axis < len(shape) else 1
        return ChannelLayout(self.sets.add_set(node.name, size, pinned=True), axis % max(1, len(shape)))

    def _is_picture(self, source: fx.Node) -> bool:
        layout = self.layouts.get(source)
        return layout is not None and layout.is_plain and layout.axis == 1

    # --- parameters and costs --------------------------------------------------------------------------------------

    def register_tensor(
        self, node: fx.Node, name: str, rows: Channels, columns: Channels | None = None, *, inputs_first: bool = False
    ) -> None:
        """Record the channels of a parameter or buffer of the module that a node calls, if it has it."""
        path, _, own = f"{node.target}.{name}".rpartition(".")
        if getattr(self.recording.meta_module.get_submodule(path), own, None) is not None:
            self.tensor_channels[f"{path}.{own}"] = TensorChannels(rows, columns, inputs_first)

    def count_macs(self, node: fx.Node, rows: Channels, columns: Channels | None, pairs: int) -> None:
        self.mac_terms.append(MacTerm(self.node_macs(node) // pairs, rows, columns))

    def node_macs(self, node: fx.Node) -> int:
        return self.recording.facts[node].flops // (FLOPS_PER_MAC * PROBE_BATCH_SIZES[0])

    def raise_unsupported(self, node: fx.Node, what: str = "") -> NoReturn:
        if not what and node.op == "call_module":
            what = type(self.recording.meta_module.get_submodule(str(node.target))).__name__
        where = str(node.target) if node.op == "call_module" else f"node {node.name}"
        raise ModelError(
            f"cannot drop channels before {what or call_name(node)!r} ({where}); "
            "train the whole model (submodel = 'whole') or use layers that work channel by channel there"
        )


def call_name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", node.target))


def is_transposed_linear(module: nn.Module) -> bool:
    """Whether this is the linear layer of Hugging Face's GPT-2, whose weight is (inputs, outputs)."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")

"""Traces what attention does to channels: it splits them into heads, compares queries with keys, and joins the heads.

Queries, keys and values of one head are kept or dropped together, with the inputs that the output projection has from
it; the features of a head are never dropped one by one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx, nn

from potluck.model.submodels.channel_flow import ChannelFlow, ChannelLayout, MacTerm, call_name

__all__ = [
    "CHUNK_CALLS",
    "concatenate_heads",
    "fused_parts",
    "take_from_stack",
    "trace_attention",
    "trace_chunks",
    "trace_head_reshape",
    "trace_item",
    "trace_multihead_attention",
    "trace_permutation",
    "trace_product",
]

CHUNK_CALLS = frozenset(["chunk", "split", "tensor_split"])
STACK_CALLS = frozenset(["view", "reshape", "unflatten"])


def fused_parts(flow: ChannelFlow, node: fx.Node) -> list[int]:
    """The sizes of the parts in which a layer's output is used: queries, keys and values of one linear layer."""
    size = flow.traced_value(node).shape[-1]
    for user in node.users:
        parts = [part.shape[-1] for part in _as_tuple(flow.traced_value(user)) if isinstance(part, torch.Tensor)]
        if len(node.users) == 1 and call_name(user) in STACK_CALLS and _is_stacked(flow, node, user):
            stacked = flow.traced_value(user).shape[-3]
            return [size // stacked] * stacked
        if call_name(user) not in CHUNK_CALLS or len(node.users) > 1 or sum(parts) != size:
            return [size]
        return parts
    return [size]


def _is_stacked(flow: ChannelFlow, node: fx.Node, user: fx.Node) -> bool:
    """Whether a reshape makes (…, queries keys and values, heads, features) of the last axis."""
    before, after = flow.traced_value(node).shape, flow.traced_value(user).shape
    return len(after) == len(before) + 2 and after[: len(before) - 1] == before[:-1] and after[-3] in (2, 3)


def trace_chunks(flow: ChannelFlow, node: fx.Node) -> tuple[ChannelLayout, ...] | None:
    """The layouts of a tensor's parts; None if they are not cut where one set of channels ends."""
    source = node.all_input_nodes[0]
    layout, whole = flow.layouts[source], flow.traced_value(source).shape
    parts = [part.shape for part in flow.traced_value(node)]
    if all(part[layout.axis] == whole[layout.axis] for part in parts):
        return tuple(layout for _ in parts) if layout.inner is None else None
    lengths = [flow.sets.axis_length((span,)) for span in layout.channels]
    if not layout.is_plain or lengths != [part[layout.axis] for part in parts]:
        return None
    if len(set(lengths)) > 1:
        flow.sets.pin(layout.channels)
    else:
        flow.size_free_calls[node.name] = torch.chunk, (len(parts), layout.axis)
    return tuple(ChannelLayout((span,), layout.axis) for span in layout.channels)


def trace_permutation(flow: ChannelFlow, node: fx.Node) -> ChannelLayout:
    """`transpose`, `permute` and the like: found by what they do to the axes of a tensor without equal sides."""
    if len(node.all_input_nodes) > 1:
        return flow.trace_opaque(node)
    dims = flow.traced_value(node.all_input_nodes[0]).dim()
    numbered = torch.empty(tuple(range(2, 2 + dims)), device="meta")
    function = node.target if callable(node.target) else getattr(torch.Tensor, str(node.target))
    order = tuple(side - 2 for side in function(numbered, *node.args[1:], **node.kwargs).shape)
    return flow.input_layout(node).permuted(order)


def trace_head_reshape(flow: ChannelFlow, node: fx.Node) -> ChannelLayout | None:
    """A reshape that splits the last axis into heads, or joins heads; None if it does something else."""
    layout = flow.input_layout(node)
    before, after = flow.traced_value(node.all_input_nodes[0]).shape, flow.traced_value(node).shape
    axis = layout.axis
    if after == before:
        flow.size_free_calls[node.name] = torch.flatten, (axis, axis)  # which changes nothing, at any width
        return layout
    if layout.is_plain and axis == len(before) - 1 and axis > 1:
        if len(after) == len(before) + 2 and after[:axis] == before[:axis] and len(layout.channels) == after[axis]:
            flow.size_free_calls[node.name] = torch.unflatten, (axis, (after[axis], -1, after[-1]))
            return _stack_heads(flow, layout, after[-1])
        if len(after) == len(before) + 1 and after[:axis] == before[:axis]:
            flow.sets.coarsen(layout.channels, after[-1])
            flow.size_free_calls[node.name] = torch.unflatten, (axis, (-1, after[-1]))
            return ChannelLayout(layout.channels, axis, after[-1], axis + 1)
        if after[-1] == before[-1] and math.prod(after) == math.prod(before) and len(after) == 2:
            flow.size_free_calls[node.name] = torch.flatten, (0, len(before) - 2)
            return ChannelLayout(layout.channels, 1)
    joined = (*before[:axis], before[axis] * (layout.head_width or 1), *before[axis + 2 :])
    if layout.inner == axis + 1 and tuple(after) == joined:
        flow.size_free_calls[node.name] = torch.flatten, (axis, axis + 1)
        return ChannelLayout(layout.channels, axis)
    return None


def _stack_heads(flow: ChannelFlow, layout: ChannelLayout, width: int) -> ChannelLayout:
    """Queries, keys and values along an axis of their own, which all have the same heads."""
    flow.sets.coarsen(layout.channels, width)
    first, *others = layout.channels
    for other in others:
        flow.sets.join_sets((first,), (other,))
    return ChannelLayout((first,), layout.axis + 1, width, layout.axis + 2)


def concatenate_heads(flow: ChannelFlow, sources: list[fx.Node], axis: int) -> ChannelLayout | None:
    """The heads of a concatenation along another axis of theirs; None if it is something else."""
    layouts = [flow.layouts[source] for source in sources if source in flow.layouts]
    first = layouts[0] if len(layouts) == len(sources) else None
    if first is None or any((each.axis, each.inner) != (first.axis, first.inner) for each in layouts):
        return None
    if first.is_plain or axis == first.axis:
        return None
    for each in layouts[1:]:
        flow.sets.join_sets(first.channels, each.channels)
    return first


def trace_item(flow: ChannelFlow, node: fx.Node) -> ChannelLayout:
    """An item of a tuple or of a stack, or a slice that takes all channels."""
    source, position = node.args[:2]
    assert isinstance(source, fx.Node)
    if source in flow.layouts_in_tuple and isinstance(position, int):
        return flow.layouts_in_tuple[source][position]
    layout = flow.layouts.get(source)
    if layout is None:
        return flow.trace_opaque(node)
    if isinstance(position, int):
        return take_from_stack(layout) or flow.trace_opaque(node)
    taken = position if isinstance(position, tuple) else (position,)
    sliced = all(isinstance(item, slice) or item is Ellipsis for item in taken)
    if not sliced or (layout.is_plain and layout.axis == 1):
        return flow.trace_opaque(node)
    before, after = flow.traced_value(source).shape, flow.traced_value(node).shape
    return layout if before[layout.axis] == after[layout.axis] else flow.trace_opaque(node)


def take_from_stack(layout: ChannelLayout) -> ChannelLayout | None:
    """The layout of one item along the first axis; None if that is the axis of the heads."""
    if layout.is_plain or layout.axis == 0 or layout.inner is None or layout.inner == 0:
        return None
    return ChannelLayout(layout.channels, layout.axis - 1, layout.head_width, layout.inner - 1)


def trace_attention(flow: ChannelFlow, node: fx.Node) -> ChannelLayout:
    """`scaled_dot_product_attention`: every head of its own; a mask that differs between heads keeps all of them."""
    named: dict[str, Any] = dict(zip(("query", "key", "value", "attn_mask"), node.args, strict=False)) | node.kwargs
    sources = [named["query"], named["key"], named["value"]]
    layouts = [flow.layouts.get(source) for source in sources]
    dims, mask = flow.traced_value(node).dim(), named.get("attn_mask")
    wanted = (dims - 3, dims - 1)
    found = [layout for layout in layouts if layout is not None and (layout.axis, layout.inner) == wanted]
    if len(found) < len(layouts) or dims < 4 or len({layout.head_width for layout in found}) > 1:
        return flow.trace_opaque(node)
    if isinstance(mask, fx.Node) and _differs_by_head(flow.traced_value(mask)):
        flow.pin_sources(node)
    return _join_heads(flow, node, found)


def trace_product(flow: ChannelFlow, node: fx.Node) -> ChannelLayout:
    """A matrix product of queries and keys, or of attention scores and values; any other keeps all channels."""
    layouts = [flow.layouts.get(source) if isinstance(source, fx.Node) else None for source in node.args[:2]]
    one, other = (*layouts, None, None)[:2]
    if one is None or other is None or one.is_plain or one.head_width != other.head_width or one.axis != other.axis:
        return flow.trace_opaque(node)
    last = flow.traced_value(node).dim() - 1
    if one.inner == last and other.inner == last - 1:
        joined = _join_heads(flow, node, [one, other])
        return ChannelLayout(joined.channels, joined.axis, joined.head_width)
    if one.inner is None and other.inner == last:
        return _join_heads(flow, node, [one, other])
    return flow.trace_opaque(node)


def trace_multihead_attention(
    flow: ChannelFlow, node: fx.Node, attention: nn.MultiheadAttention
) -> tuple[ChannelLayout, ...]:
    """torch's own module, whose heads are dropped where queries, keys and values are one weight."""
    flow.pin_sources(node)
    width, outputs = attention.embed_dim, flow.traced_value(node)
    output = flow.sets.add_set(f"{node.target}.out_proj", width)
    layout = ChannelLayout(output, outputs[0].dim() - 1)
    if not _is_narrowable(flow, attention, node):
        flow.sets.pin(output)
        flow.fixed_macs += flow.node_macs(node)
    else:
        heads = flow.sets.add_set(str(node.target), width)
        flow.sets.coarsen(heads, attention.head_dim)
        flow.register_tensor(node, "in_proj_weight", heads * 3)
        flow.register_tensor(node, "in_proj_bias", heads * 3)
        flow.register_tensor(node, "out_proj.weight", output, heads)
        flow.register_tensor(node, "out_proj.bias", output)
        tokens = outputs[0].shape[0 if not attention.batch_first else 1]
        flow.mac_terms.append(MacTerm(tokens, output, heads))
        flow.mac_terms.append(MacTerm((flow.node_macs(node) - tokens * width**2) // width, heads, None))
    scores = [ChannelLayout(flow.sets.add_set(node.name, 1, pinned=True)) for _ in outputs[1:]]
    return (layout, *scores)


def _is_narrowable(flow: ChannelFlow, attention: nn.MultiheadAttention, node: fx.Node) -> bool:
    scores_used = any(user.args[1:] != (0,) for user in node.users)
    plain = attention.in_proj_weight is not None and attention.bias_k is None and not attention.add_zero_attn
    mask = node.kwargs.get("attn_mask", node.args[5] if len(node.args) > 5 else None)
    same_mask = not isinstance(mask, fx.Node) or flow.traced_value(mask).dim() == 2
    return plain and same_mask and not scores_used and flow.traced_value(node)[0].dim() == 3


def _join_heads(flow: ChannelFlow, node: fx.Node, layouts: list[ChannelLayout]) -> ChannelLayout:
    channels = layouts[-1].channels
    for layout in layouts[:-1]:
        if len(layout.channels) == len(channels):
            flow.sets.join_sets(layout.channels, channels)
        else:
            flow.sets.pin((*layout.channels, *channels))
    length = flow.sets.axis_length(channels)
    if any(flow.sets.axis_length(layout.channels) != length for layout in layouts):
        flow.sets.pin(span for layout in layouts for span in layout.channels)
    flow.count_macs(node, channels, None, length)
    return layouts[-1]


def _differs_by_head(mask: Any) -> bool:
    return isinstance(mask, torch.Tensor) and mask.dim() > 2 and mask.shape[-3] != 1


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else ()

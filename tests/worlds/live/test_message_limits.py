"""Every number, text and list of every message that a peer can send has bounds; a field without them fails here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from potluck.journal import Instant, Scalar, Span
from potluck.loops.message_limits import is_usable_loss
from potluck.loops.messages import Gift, Push
from potluck.loops.pipeline import messages as pipeline
from potluck.payload import Payload
from potluck.worlds.live import wire_format
from potluck.worlds.live.handshake_messages import JoinAccepted, JoinRefused, JoinRequest
from potluck.worlds.live.wire_format import ControlFrame, TransferOffer, WireError

wire_format.register_messages(Gift, *pipeline.KINDS)

SENT: list[Any] = [
    *wire_format._CONTROL_TYPES, *wire_format._BULK_TYPES, ControlFrame, TransferOffer,
    JoinRequest, JoinAccepted, JoinRefused,
]  # fmt: skip
RECORDS = {Span, Instant, Scalar}  # checked by device_records.record_refusal, and tested with it
ANY = {
    (ControlFrame, "message"),
    (TransferOffer, "message"),
    (Payload, "arrays"),
}  # decoded as a known message; refused


def _unbounded(kind: inspect.Type, path: str) -> Iterator[str]:
    """The paths of all values in a type that have no bounds."""
    if isinstance(kind, inspect.Metadata):
        if not (kind.extra or {}).get("unbounded"):
            yield from _unbounded(kind.type, path)
    elif isinstance(kind, inspect.IntType | inspect.FloatType):
        if None in (kind.ge, kind.le):
            yield f"{path}: no bounds"
    elif isinstance(kind, inspect.StrType | inspect.BytesType):
        if kind.max_length is None:
            yield f"{path}: no largest length"
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.DictType):
        if kind.max_length is None:
            yield f"{path}: no largest length"
        parts = (kind.key_type, kind.value_type) if isinstance(kind, inspect.DictType) else (kind.item_type,)
        for part in parts:
            yield from _unbounded(part, f"{path}[]")
    elif isinstance(kind, inspect.TupleType):
        for part in kind.item_types:
            yield from _unbounded(part, f"{path}[]")
    elif isinstance(kind, inspect.UnionType):
        for part in kind.types:
            yield from _unbounded(part, path)
    elif isinstance(kind, inspect.StructType):
        if kind.cls not in RECORDS:
            for field in kind.fields:
                if (kind.cls, field.name) not in ANY:
                    yield from _unbounded(field.type, f"{path}.{field.name}")
    elif not isinstance(kind, inspect.BoolType | inspect.NoneType):
        yield f"{path}: {type(kind).__name__} may be anything"


@pytest.mark.parametrize("message", SENT, ids=lambda message: message.__name__)
def test_every_field_of_a_message_has_bounds(message: Any) -> None:
    assert list(_unbounded(inspect.type_info(message), message.__name__)) == []


def _values(kind: inspect.Type, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], inspect.Type]]:
    """The paths of the numbers and texts in a message."""
    if isinstance(kind, inspect.Metadata):
        yield from _values(kind.type, path)
    elif isinstance(kind, inspect.StructType) and kind.cls not in RECORDS:
        for field in kind.fields:
            yield from _values(field.type, (*path, field.encode_name))
    elif isinstance(kind, inspect.UnionType):
        for part in kind.types:
            yield from _values(part, path)
    elif isinstance(kind, inspect.IntType | inspect.FloatType | inspect.StrType):
        yield path, kind


BAD: dict[type[inspect.Type], list[Any]] = {
    inspect.IntType: [-(2**63), -2, 2**63, 2**64 - 1, 1.5, math.nan, "1", None, [1]],
    inspect.FloatType: [-math.inf, math.inf, math.nan, 1e308, -1e308, "1", [1.0]],
    inspect.StrType: ["x" * 100_000, 1, math.nan, [""]],
}


def _example(message: Any) -> dict[str, Any]:
    """A message that can be decoded, as the tables that are sent."""
    fields: dict[str, Any] = {"type": inspect.type_info(message).tag}  # type: ignore[attr-defined]
    for field in msgspec.structs.fields(message):
        if field.required:
            fields[field.name] = _plain_value(inspect.type_info(field.type))
    return fields


def _plain_value(kind: inspect.Type) -> Any:
    match kind:
        case inspect.Metadata(type=inner):
            return _plain_value(inner)
        case inspect.StrType():
            return ""
        case inspect.BoolType():
            return False
        case inspect.ListType() | inspect.VarTupleType():
            return []
        case inspect.DictType():
            return {}
        case inspect.StructType():
            return {"nbytes": 0}
        case inspect.UnionType(types=types):
            return _plain_value(types[0])
    return 0


@pytest.mark.parametrize("message", [*wire_format._CONTROL_TYPES, *wire_format._BULK_TYPES], ids=lambda m: m.__name__)
def test_a_number_or_text_out_of_bounds_is_a_wire_error(message: Any) -> None:
    """NaN, infinity, negative, 2^63, 1e308, absurdly long: never believed, and never another exception."""
    for (name, *more), kind in _values(inspect.type_info(message), ()):
        for bad in BAD[type(kind)]:
            example = _example(message)
            example[name] = {**example[name], more[0]: bad} if more else bad
            loss = name == "loss" and isinstance(bad, float)
            nothing = bad is None and name in ("end", "loss")
            if not (loss or nothing):
                assert _is_refused(message, example), f"{message.__name__}.{name} = {str(bad)[:20]} was believed"


def _is_refused(message: Any, example: dict[str, Any]) -> bool:
    try:
        _decode(message, example)
    except WireError:
        return True
    return False


def _decode(message: Any, example: dict[str, Any]) -> None:
    encode = msgspec.msgpack.encode
    if message in wire_format._BULK_TYPES:
        wire_format.decode_offer(encode([1, 0, 1, 1 << 20, [], example]), 1 << 20)
    else:
        wire_format.decode_frame(encode([1, 0, example]))


def test_the_examples_themselves_are_accepted() -> None:
    for message in [*wire_format._CONTROL_TYPES, *wire_format._BULK_TYPES]:
        _decode(message, _example(message))


@pytest.mark.parametrize(("loss", "usable"), [(2.5, True), (-3.0, True), (math.nan, False), (math.inf, False),
                                              (1e308, False), (-1e31, False)])  # fmt: skip
def test_the_loss_of_a_diverged_model_is_received_but_not_used(loss: float, usable: bool) -> None:
    push = Push(Payload(0), turn=0, first=0, last=0, samples=1, loss=loss)
    offer = wire_format.decode_offer(wire_format.encode_offer(1, 0, 1, push, [], 1 << 20), 1 << 20)
    assert is_usable_loss(offer.message.loss) == usable


@pytest.mark.parametrize("times", [(math.nan, 0.0), (0.0, math.nan), (0.0, math.inf), (-1.0, 0.0), (2.0, 1.0)])
def test_the_times_of_a_chunk_are_times(times: tuple[float, float]) -> None:
    """On a shaped link they decide when a message is delivered; NaN would disorder the event loop's timers."""
    with pytest.raises(WireError, match="was sent from"):
        wire_format.decode_chunk(wire_format.encode_chunk(1, 2, 3, b"data", *times), b"data")

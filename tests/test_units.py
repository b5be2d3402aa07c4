from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from potluck.units import Bytes, BytesPerSecond, FlopsPerSecond, Quantity, Seconds

KINDS: list[type[Quantity]] = [Seconds, Bytes, BytesPerSecond, FlopsPerSecond]
LEVELS = st.floats(min_value=0, allow_nan=False)


@pytest.mark.parametrize("kind", KINDS)
@given(level=LEVELS)
@example(level=math.inf)
@example(level=5e-324)
@example(level=1.7976931348623157e308)
@example(level=0.1 + 0.2)
def test_a_formatted_quantity_reads_back_as_exactly_the_same_number(kind: type[Quantity], level: float) -> None:
    quantity = kind(level)
    parsed = kind.parse(str(quantity))
    assert float(parsed) == level
    assert type(parsed) is kind


@pytest.mark.parametrize("kind", KINDS)
@given(number=st.integers(1, 999), data=st.data())
def test_a_round_figure_in_any_unit_reads_back(kind: type[Quantity], number: int, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(sorted(kind.units)))
    quantity = kind.parse(f"{number} {unit}")
    assert float(quantity) == number * kind.units[unit]
    assert kind.parse(str(quantity)) == quantity


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (Seconds, "35 ms", 0.035),
        (Seconds, "35ms", 0.035),
        (Seconds, "  2   min ", 120.0),
        (Seconds, ".5 h", 1800.0),
        (Seconds, "1e-3 s", 1e-3),
        (Seconds, "+1E+2 s", 100.0),
        (Seconds, "7", 7.0),
        (Seconds, 7, 7.0),
        (Seconds, "1 d", 86400.0),
        (Seconds, "3 µs", 3e-6),
        (Bytes, "4 GiB", 4 * 2.0**30),
        (Bytes, "4 GB", 4e9),
        (BytesPerSecond, "20 Mbit/s", 2.5e6),
        (BytesPerSecond, "8 bit/s", 1.0),
        (BytesPerSecond, "unlimited", math.inf),
        (FlopsPerSecond, "2 GFLOP/s", 2e9),
        (FlopsPerSecond, 0, 0.0),
    ],
)
def test_accepted_notations(kind: type[Quantity], written: object, value: float) -> None:
    assert kind.parse(written) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("kind", "written", "message"),
    [
        (Seconds, "-1 s", "negative"),
        (Seconds, -0.001, "negative"),
        (Seconds, math.nan, "negative"),
        (Seconds, True, "quantity such as '35 ms'"),
        (Seconds, None, "quantity such as '35 ms'"),
        (Seconds, [1], "quantity such as '35 ms'"),
        (Seconds, "", "quantity such as '35 ms'"),
        (Seconds, "soon", "quantity such as '35 ms'"),
        (Seconds, "1 2 s", "quantity such as"),
        (Seconds, "1,5 s", "unknown unit"),
        (Seconds, "4 GiB", "use one of s, us"),
        (Bytes, "4 gib", "unknown unit"),
        (BytesPerSecond, "20 Mbit", "as in '20 Mbit/s'"),
        (BytesPerSecond, "20 Mb/s", "unknown unit"),
        (FlopsPerSecond, "2 GFLOPS", "as in '2 GFLOP/s'"),
    ],
)
def test_an_invalid_quantity_is_refused_with_what_is_allowed(
    kind: type[Quantity], written: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind.parse(written)


def test_a_whole_number_too_big_for_a_float_is_refused() -> None:
    with pytest.raises(ValueError, match="a number of 401 digits is too large"):
        Seconds.parse(10**400)


@pytest.mark.parametrize(
    ("quantity", "written"),
    [
        (Seconds(0.035), "35 ms"),
        (Seconds(90), "1.5 min"),
        (Seconds(0), "0.0 s"),
        (Bytes(4 * 2**30), "4 GiB"),
        (Bytes(5e9), "5 GB"),
        (BytesPerSecond(2.5e6), "2.5 MB/s"),
        (FlopsPerSecond(12e9), "12 GFLOP/s"),
        (BytesPerSecond(math.inf), "unlimited"),
    ],
)
def test_quantities_are_formatted_readably(quantity: Quantity, written: str) -> None:
    assert str(quantity) == written


def test_arithmetic_is_that_of_floats() -> None:
    assert Bytes(6) / BytesPerSecond(3) == 2.0
    assert Seconds(1) < Seconds.parse("1 min")
    assert hash(Seconds(2)) == hash(2.0)


@pytest.mark.parametrize("text", [20, 20.5, "20", "1e6"])
def test_a_bandwidth_needs_a_unit(text: object) -> None:
    with pytest.raises(ValueError, match=r"has no unit; write '20 Mbit/s'"):
        BytesPerSecond.parse(text)


@pytest.mark.parametrize("text", [0, 0.0, math.inf, "unlimited", BytesPerSecond(5.0)])
def test_zero_unlimited_and_a_bandwidth_itself_need_none(text: object) -> None:
    assert BytesPerSecond.parse(text) == (math.inf if text == "unlimited" else text)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.cli.number_format import (
    format_bit_rate,
    format_bytes,
    format_flops,
    format_fraction,
    format_percent,
    format_seconds,
    score_texts,
)
from potluck.cli.sparkline import BoundedCurve, draw_sparkline


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (4.48e-6, "4.48 µs"),
        (0.99949e-3, "999 µs"),
        (0.35, "350 ms"),
        (0.99999, "1 s"),
        (14.32, "14.3 s"),
        (99.96, "1 min 40 s"),
        (125, "2 min 05 s"),
        (11520, "3 h 12 min"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert format_seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (64, "64 B"), (999.9, "1 kB"), (94_646_016, "94.6 MB"), (203e6, "203 MB"), (1.234e9, "1.23 GB")],
)
def test_amount(value: float, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 bit/s"), (124.99, "1 kbit/s"), (2_500_000, "20 Mbit/s"), (150e6, "1.2 Gbit/s")]
)
def test_rate(value: float, text: str) -> None:
    assert format_bit_rate(value) == text


def test_percent_and_fraction() -> None:
    assert (format_percent(0.9528), format_percent(None)) == ("95.3 %", "–")
    assert (format_fraction(1, 4), format_fraction(0, 0)) == ("25 %", "–")


def test_a_sparkline_ends_where_its_points_end() -> None:
    rising = [(float(at), at / 10) for at in range(11)]
    assert len(draw_sparkline(rising, 8, 10)) == 8
    assert len(draw_sparkline(rising, 20, 20)) == 10
    assert draw_sparkline(rising, 20, 1000) != ""
    assert draw_sparkline([], 20, 10) == ""


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=50), st.integers(1, 60))
def test_a_sparkline_is_no_wider_than_asked(values: list[float], width: int) -> None:
    points = [(float(at), value) for at, value in enumerate(values, 1)]
    line = draw_sparkline(points, width, points[-1][0])
    assert len(line) == width
    assert set(line) <= set("▁▂▃▄▅▆▇█")


def test_higher_values_are_drawn_higher() -> None:
    line = draw_sparkline([(float(at), at / 40) for at in range(41)], 40, 40)
    assert sorted(line) == list(line)
    assert (line[0], line[-1]) == ("▁", "█")


def test_a_bounded_curve_spans_the_full_range() -> None:
    curve = BoundedCurve(max_points=64)
    for at in range(10_000):
        curve.add_point(float(at), 0.5)
    assert len(curve.points) < 64
    assert curve.points[0][0] == 0
    assert curve.points[-1][0] > 9000


@pytest.mark.parametrize(
    ("flops", "text"), [(20.0, "20 FLOP/s"), (2e7, "20 MFLOP/s"), (1.2345e9, "1.23 GFLOP/s"), (9.999e11, "1 TFLOP/s")]
)
def test_speed(flops: float, text: str) -> None:
    assert format_flops(flops) == text


def test_the_metrics_of_an_evaluation_or_else_its_loss() -> None:
    assert score_texts({"loss": 0.5}) == ["loss 0.5"]
    assert score_texts({"loss": 0.5, "accuracy": 0.95, "perplexity": 3.14159}) == [
        "accuracy 95.0 %",
        "perplexity 3.142",
    ]
    assert score_texts({"accuracy": None, "loss": None}) == []

"""Reading the forecasts: a case is a network and a batch size, a row of it is one bandwidth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from potluck.bench.experiment import Results

__all__ = ["Case", "Row", "cut", "deviation", "gains", "largest", "lived", "of_results", "only", "rows"]

Row = Mapping[str, Any]
Case = Mapping[str, Any]


def of_results(results: Results) -> list[Case]:
    """The cases among the pieces."""
    return [result for result in results.values() if "network" in result]


def only(cases: Sequence[Case], network: str) -> list[Case]:
    return [case for case in cases if case["network"] == network]


def rows(cases: Sequence[Case]) -> Iterator[Row]:
    return (row for case in cases for row in case["rows"])


def cut(row: Row, strategy: str) -> float:
    """The share of the sequential iteration that a strategy takes away."""
    return float(1 - row["iteration_s"][strategy] / row["iteration_s"]["sequential"])


def largest(cases: Sequence[Case], strategy: str) -> float:
    return max(cut(row, strategy) for row in rows(cases))


def gains(cases: Sequence[Case]) -> list[float]:
    """The shares of the optimal iteration that duplex takes away, wherever it was forecast."""
    return [float(1 - row["duplex_s"] / row["iteration_s"]["optimal"]) for row in rows(cases) if "duplex_s" in row]


def lived(results: Results) -> list[Row]:
    """The rows that were lived through in the simulated world."""
    return [row for result in results.values() if "lived" in result for row in result["rows"]]


def deviation(row: Row) -> float:
    """How far a lived round is from its forecast, as a share of it."""
    return float(abs(row["lived_s"] / row["forecast_s"] - 1))

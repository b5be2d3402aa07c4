"""Reading the forecasts: a case is a network and a batch size, a row of it is one bandwidth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.benchmark import Results

__all__ = [
    "Case",
    "Row",
    "case_rows",
    "cases_of_network",
    "duplex_gains",
    "forecast_cases",
    "forecast_deviation",
    "largest_reduction",
    "simulated_rows",
    "time_reduction",
]

Row = Mapping[str, Any]
Case = Mapping[str, Any]


def forecast_cases(results: Results) -> list[Case]:
    """The cases among the pieces."""
    return [result for result in results.values() if "network" in result]


def cases_of_network(cases: Sequence[Case], network: str) -> list[Case]:
    return [case for case in cases if case["network"] == network]


def case_rows(cases: Sequence[Case]) -> Iterator[Row]:
    return (row for case in cases for row in case["rows"])


def time_reduction(row: Row, strategy: str) -> float:
    """The share of the sequential iteration that a strategy takes away."""
    return float(1 - row["iteration_s"][strategy] / row["iteration_s"]["sequential"])


def largest_reduction(cases: Sequence[Case], strategy: str) -> float:
    return max(time_reduction(row, strategy) for row in case_rows(cases))


def duplex_gains(cases: Sequence[Case]) -> list[float]:
    """The shares of the optimal iteration that duplex takes away, wherever it was forecast."""
    return [float(1 - row["duplex_s"] / row["iteration_s"]["optimal"]) for row in case_rows(cases) if "duplex_s" in row]


def simulated_rows(results: Results) -> list[Row]:
    """The rows that were lived through in the simulated world."""
    return [row for result in results.values() if "lived" in result for row in result["rows"]]


def forecast_deviation(row: Row) -> float:
    """How far a lived round is from its forecast, as a share of it."""
    return float(abs(row["lived_s"] / row["forecast_s"] - 1))

"""Metrics of a task: built-in ones by name, functions of (outputs, targets), and those of torchmetrics.

A metric has a name, a direction (whether higher is better) and a sum that accumulates it over batches.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from potluck.errors import ModelError, SettingError
from potluck.model.class_positions import prediction_tensor, target_tensor
from potluck.model.metric_sums import (
    AccuracySum,
    ErrorSum,
    F1Sum,
    IntersectionSum,
    MetricSum,
    PerplexitySum,
    R2Sum,
    RootMeanSquareSum,
    SampleMean,
    TopFiveSum,
)
from potluck.settings import load_object, spelling_hint

__all__ = ["METRIC_NAMES", "GivenMetric", "Metric", "TaskMetric", "TaskMetrics", "resolve_metrics"]

LOSS = "loss"
_NAME = re.compile(r"[^\W_][\w.@²-]*")
_KEY = "task.metrics"


@dataclass(frozen=True)
class Metric:
    """A number computed from a model's outputs and the targets; the mean over batches, weighted by their samples.

    The function may also be a `torchmetrics.Metric`, which accumulates by itself.
    """

    name: str
    function: Callable[[Any, Any], Tensor | float]
    higher_is_better: bool

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise SettingError(_KEY, f"{self.name!r} cannot name a metric; use letters, digits, '-', '_' and '.'")
        if not isinstance(self.higher_is_better, bool):
            raise SettingError(_KEY, f"metric {self.name!r} needs higher_is_better=True or False")
        if not callable(self.function):
            raise SettingError(_KEY, f"metric {self.name!r} needs a function of (outputs, targets)")

    @property
    def value_range(self) -> tuple[float, float]:
        """What its values can be at all."""
        return -float("inf"), float("inf")

    def new_sum(self, classes_last: bool = False) -> MetricSum:
        """A sum over no batches."""
        if _is_torchmetrics(self.function):
            return _TorchmetricsSum(self.name, self.function)
        return SampleMean(self.function)


@dataclass(frozen=True)
class _BuiltInMetric:
    name: str
    higher_is_better: bool
    value_range: tuple[float, float]
    sum_class: Callable[..., MetricSum]
    of_classes: bool = True

    def new_sum(self, classes_last: bool = False) -> MetricSum:
        return self.sum_class(classes_last) if self.of_classes else self.sum_class()


class TaskMetric(Protocol):
    """What a task's evaluation needs to know of a metric."""

    @property
    def name(self) -> str: ...

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def value_range(self) -> tuple[float, float]: ...

    def new_sum(self, classes_last: bool = False) -> MetricSum: ...


_INFINITE = float("inf")
ACCURACY = _BuiltInMetric("accuracy", True, (0.0, 1.0), AccuracySum)
_BUILT_IN: dict[str, TaskMetric] = {
    metric.name: metric
    for metric in (
        ACCURACY,
        _BuiltInMetric("top-5", True, (0.0, 1.0), TopFiveSum),
        _BuiltInMetric("perplexity", False, (1.0, _INFINITE), PerplexitySum),
        _BuiltInMetric("f1", True, (0.0, 1.0), F1Sum),
        _BuiltInMetric("mean-iou", True, (0.0, 1.0), IntersectionSum),
        _BuiltInMetric("mae", False, (0.0, _INFINITE), ErrorSum, of_classes=False),
        _BuiltInMetric("rmse", False, (0.0, _INFINITE), RootMeanSquareSum, of_classes=False),
        _BuiltInMetric("r2", True, (-_INFINITE, 1.0), R2Sum, of_classes=False),
    )
}
METRIC_NAMES = (LOSS, *_BUILT_IN)

GivenMetric = str | Metric | Callable[..., Any]  # a name or path, a Metric, a function, or a torchmetrics metric


@dataclass(frozen=True)
class TaskMetrics:
    """What a task is evaluated by: its loss, and the metrics that it lists or else accuracy where it has classes."""

    listed: tuple[TaskMetric, ...] | None = None
    first: str | None = None  # of those that the task lists

    @property
    def directions(self) -> Mapping[str, bool]:
        """Whether higher is better, by name. A task that lists none may turn out to have no accuracy."""
        metrics = (ACCURACY,) if self.listed is None else self.listed
        return {LOSS: False, **{metric.name: metric.higher_is_better for metric in metrics}}

    def direction_of(self, name: str, key: str) -> bool:
        """Whether higher is better; a SettingError at `key` names the known metrics."""
        known = self.directions
        if name not in known:
            hint = spelling_hint(name, known)
            listed = "" if name not in METRIC_NAMES or hint else f"; add it to {_KEY}"
            raise SettingError(key, f"the task has no metric {name!r}, only {', '.join(known)}{hint}{listed}")
        return known[name]

    def check_target(self, name: str, value: float, key: str) -> None:
        """Refuse a value to stop at that the metric always or never has."""
        metrics = {metric.name: metric for metric in (ACCURACY, *(self.listed or ()))}
        low, high = metrics[name].value_range if name in metrics else (-_INFINITE, _INFINITE)
        if not low <= value <= high:
            raise SettingError(key, f"is {value:g}, but {name} lies between {low:g} and {high:g}")

    def values_refusal(self, values: Mapping[str, float]) -> str | None:
        """Why these cannot be the values of the listed metrics, as a peer sends them; None if they can."""
        listed = {metric.name: metric for metric in self.listed or ()}
        if values.keys() != listed.keys():
            return f"it measured {', '.join(sorted(values)[:5]) or 'nothing'}, not {', '.join(listed) or 'nothing'}"
        for name, value in values.items():
            low, high = listed[name].value_range
            if value < low - 1e-6 or value > high + 1e-6:
                return f"it measured {name} {value}"
        return None


def resolve_metrics(given: Sequence[GivenMetric] | None) -> TaskMetrics:
    """The metrics that a task lists, by whatever names them."""
    if not given:
        return TaskMetrics()
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise SettingError(_KEY, f"must be a list of metrics, not {given!r}")
    listed: list[TaskMetric] = []
    names: list[str] = []
    for one in given:
        metric = None if isinstance(one, str) and one == LOSS else _resolve_metric(one)  # the loss is always there
        name = LOSS if metric is None else metric.name
        if name in names or (metric is not None and name == LOSS):
            raise SettingError(_KEY, f"two metrics are called {name!r}; name one of them with potluck.Metric")
        names.append(name)
        if metric is not None:
            listed.append(metric)
    return TaskMetrics(tuple(listed), names[0])


def _resolve_metric(given: GivenMetric) -> TaskMetric:
    if isinstance(given, str):
        if given in _BUILT_IN:
            return _BUILT_IN[given]
        if ":" not in given:
            known, hint = ", ".join(METRIC_NAMES), spelling_hint(given, METRIC_NAMES)
            raise SettingError(_KEY, f"{given!r} is none of {known}{hint}; or name 'package.module:function'")
        given = load_object(given, _KEY)
    if isinstance(given, type) and issubclass(given, _torchmetrics_class() or ()):
        given = given()
    if isinstance(given, Metric | _BuiltInMetric):
        return given
    if not callable(given):
        raise SettingError(_KEY, f"{given!r} is no metric; give a name, a function or a potluck.Metric")
    name = _kebab_case(type(given).__name__) if _is_torchmetrics(given) else getattr(given, "__name__", "")
    if isinstance(given, nn.ModuleDict):  # such as a MetricCollection
        raise SettingError(_KEY, f"{type(given).__name__} holds several metrics; list them one by one")
    direction = getattr(given, "higher_is_better", None)
    if not isinstance(direction, bool):
        raise SettingError(
            _KEY,
            f"{name or type(given).__name__!r} does not say whether higher is better; give potluck.Metric({name!r}, …,"
            " higher_is_better=True) or set its attribute higher_is_better",
        )
    return Metric(name, given, direction)


def _kebab_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def _torchmetrics_class() -> Any:
    """The class of torchmetrics' metrics, if the user has imported it; Potluck never does."""
    module = sys.modules.get("torchmetrics")
    return None if module is None else getattr(module, "Metric", None)


def _is_torchmetrics(given: object) -> bool:
    known = _torchmetrics_class()
    return known is not None and isinstance(given, known)


class _TorchmetricsSum:
    """Lets a fresh copy of a torchmetrics metric accumulate the batches."""

    def __init__(self, name: str, metric: Any) -> None:
        self._name = name
        self._metric = metric.clone()
        self._metric.reset()

    def add_batch(self, outputs: Any, targets: Any) -> None:
        predicted, actual = prediction_tensor(outputs), target_tensor(targets)
        if predicted.ndim == actual.ndim + 1 > 2 and predicted.shape[2:] != actual.shape[1:]:
            predicted = predicted.movedim(-1, 1)  # classes in dimension 1
        try:
            self._metric.update(predicted, actual)
        except (ValueError, TypeError, IndexError, RuntimeError) as error:
            if not type(self._metric).__module__.startswith("torchmetrics."):
                raise  # the user's own class
            reason = str(error).strip().splitlines()[0]
            raise ModelError(f"torchmetrics refuses the model's outputs or targets: {reason}") from None

    def value(self) -> float:
        value = self._metric.compute()
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ModelError(
                f"metric {self._name!r} computes several values ({type(value).__name__}); use one that gives a number"
            ) from None

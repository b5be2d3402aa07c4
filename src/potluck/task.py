"""What is trained: a model, a loss and data, named in a job or given as Python objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from torch import nn

from potluck import seeds
from potluck.data import Dataset, Source, load
from potluck.errors import DataError, ModelError, SettingError
from potluck.model import zoo
from potluck.model.group_norm import replace_batch_norms
from potluck.model.model_replica import Loss
from potluck.settings import Settings, doc, load_object

__all__ = ["Task", "TaskSettings", "build_task"]


@dataclass(frozen=True)
class Task:
    """A model (a module or a function that builds one), data, and a loss of (output, targets)."""

    model: nn.Module | Callable[[], nn.Module]
    data: Dataset
    loss: Loss = nn.functional.cross_entropy
    name: str = "own"

    def build_module(self, seed: int) -> nn.Module:
        """The initial model; a factory initialises its weights from the run's seed."""
        if isinstance(self.model, nn.Module):
            return self.model
        return _build_seeded(self.model, seed, f"the model of task {self.name!r}")


class TaskSettings(Settings, frozen=True, kw_only=True):
    """`[task]`: the model, its data and its loss."""

    model: Annotated[str, doc("Name of a built-in model, or `package.module:factory` that returns an `nn.Module`.")]
    data: Annotated[
        Source, doc("Data set by name, as `name:key=value`, or as a table; `potluck data list` shows them.")
    ]
    options: Annotated[dict[str, Any], doc("Keyword arguments for the model's constructor.")] = msgspec.field(
        default_factory=dict
    )
    norm: Annotated[
        Literal["batch", "group"],
        doc("Keep the model's batch norms, or replace each with a group norm, which suits skewed classes."),
    ] = "batch"
    augment: Annotated[bool, doc("Augment training images with the data set's random crops and flips.")] = False
    loss: Annotated[Literal["cross-entropy", "mse"], doc("Loss function; `mse` needs numeric targets.")] = (
        "cross-entropy"
    )
    costs: Annotated[
        str | None,
        doc("Built-in model whose time and bytes are charged in a simulated run instead of the trained model's."),
    ] = None

    def __post_init__(self) -> None:
        if ":" not in self.model:
            _check_zoo_name("model", self.model)
        if self.costs is not None:
            _check_zoo_name("costs", self.costs)

    @property
    def name(self) -> str:
        return f"{self.model} on {self.data.name}"

    def sample_shape(self) -> tuple[int, ...]:
        """One sample's shape, without loading the data."""
        return self.data.info(None).shape

    def model_factory(self, shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
        """A function that builds the model for samples of this shape."""
        factory = self._base_factory(shape, classes)
        return factory if self.norm == "batch" else lambda: replace_batch_norms(factory())

    def _base_factory(self, shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
        if ":" in self.model:
            factory = load_object(self.model, "task.model")
            return lambda: _require_module(factory(**self.options), self.model)
        derived: dict[str, Any] = {"classes": classes} if classes else {}
        known = zoo.model_options(self.model)
        if "side" in known and len(shape) == 3:
            derived["side"] = shape[-1]
        if "channels" in known and len(shape) == 3:
            derived["channels"] = shape[0]
        options = {**derived, **self.options}
        return lambda: zoo.build_model(self.model, **options)


def build_task(settings: TaskSettings | str, root: Path | None) -> Task:
    """Load the task that a job names."""
    if isinstance(settings, str):
        named = load_object(settings, "task")
        task = named() if callable(named) and not isinstance(named, Task) else named
        if not isinstance(task, Task):
            raise SettingError("task", f"{settings!r} must be a potluck.Task or return one, got {type(task).__name__}")
        return task
    data = load(settings.data, root, augment=settings.augment)
    loss = nn.functional.cross_entropy if settings.loss == "cross-entropy" else nn.functional.mse_loss
    if not len(data.train):
        raise DataError(f"data set {data.name!r} has no training samples")
    if settings.loss == "mse" and not data.train.y.is_floating_point():
        raise SettingError("task.loss", f"'mse' needs floating-point targets; {data.name!r} has class labels")
    return Task(settings.model_factory(data.shape, len(data.classes)), data, loss, settings.name)


def _check_zoo_name(key: str, name: str) -> None:
    try:
        zoo.model_entry(name)
    except ModelError as error:
        raise SettingError(key, str(error)) from None


def _build_seeded(factory: Callable[[], nn.Module], seed: int, what: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.child_seed(seed, "model"))
        try:
            return _require_module(factory(), what)
        except TypeError as error:
            raise ModelError(f"{what} cannot be built: {error}") from error


def _require_module(built: Any, what: str) -> nn.Module:
    if not isinstance(built, nn.Module):
        raise ModelError(f"{what} returns a {type(built).__name__}; it must return a torch.nn.Module")
    return built

"""What is trained: a model, a loss and data, named in a job or given as Python objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from torch import nn

from potluck import seeds
from potluck.data import Dataset, Info, Source, as_dataset, load
from potluck.data.token_targets import add_labels_to_inputs, shift_targets, token_alignment
from potluck.errors import DataError, ModelError, SettingError, UserError
from potluck.model import zoo
from potluck.model.group_norm import has_batch_norm, replace_batch_norms
from potluck.model.input_spec import InputSpec
from potluck.model.lazy_layers import has_lazy_layers, initialise_lazy_layers
from potluck.model.losses import LOSSES, cross_entropy, token_cross_entropy
from potluck.model.meta_copy import input_dtype
from potluck.model.metrics import GivenMetric, resolve_metrics
from potluck.model.model_replica import Loss
from potluck.model.transformers_model import ModelSource, is_causal_model
from potluck.settings import Settings, doc, load_object
from potluck.user_code import describe_user_error

__all__ = ["Task", "TaskSettings", "build_seeded", "build_task"]

_TOKEN_LOSSES: dict[Loss, str] = {cross_entropy: "cross-entropy", token_cross_entropy: "token-cross-entropy"}


@dataclass(frozen=True)
class Task:
    """A model (a module or a function that builds one), data, a loss of (outputs, targets) and metrics.

    Data may be given as PyTorch users have it: (x, y), a data set, (train, test), a loader; see `potluck.data`.
    """

    model: nn.Module | Callable[[], nn.Module]
    data: Any
    loss: Loss = cross_entropy
    metrics: Sequence[GivenMetric] = ()
    name: str = "own"

    def __post_init__(self) -> None:
        if not callable(self.model):
            raise ModelError(
                f"`model` is a {type(self.model).__name__}; give an nn.Module or a function that builds one"
            )
        if not callable(self.loss):
            raise ModelError(f"`loss` is a {type(self.loss).__name__}; give a function of (outputs, targets)")
        if not isinstance(self.name, str):
            raise UserError(f"`name` is a {type(self.name).__name__}; give the task's name as text")
        object.__setattr__(self, "data", as_dataset(self.data))
        resolve_metrics(self.metrics)  # refuses wrong ones where the task is made
        name = _TOKEN_LOSSES.get(self.loss)
        if name is not None and isinstance(self.model, nn.Module) and is_causal_model(self.model):
            object.__setattr__(self, "data", _align_next_tokens(self.data, name, "loss"))
            object.__setattr__(self, "loss", token_cross_entropy)

    def build_module(self, seed: int) -> nn.Module:
        """The initial model; a factory initialises its weights from the run's seed."""
        module = self.model
        if not isinstance(module, nn.Module):
            module = build_seeded(module, seed, f"the model of task {self.name!r}")
        if has_lazy_layers(module):
            samples = self.data.with_dtype(input_dtype(module)).train
            initialise_lazy_layers(module, samples.batch(np.arange(1))[0], seed)
        if module is self.model:
            return module
        if self.loss in _TOKEN_LOSSES and is_causal_model(module):
            _align_next_tokens(self.data, "token-cross-entropy", "loss")  # refuses targets that are not shifted
        return module


class TaskSettings(Settings, frozen=True, kw_only=True):
    """`[task]`: the model, its data and its loss."""

    model: Annotated[
        str | ModelSource,
        doc(
            "Name of a built-in model, `package.module:factory` that returns an `nn.Module`, or a table such as "
            '`{kind = "transformers", config = …}`.'
        ),
    ]
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
    loss: Annotated[
        str,
        doc(
            "Loss function: `cross-entropy`, `token-cross-entropy` (classes last, -100 ignored), `next-token` (the same"
            " for targets that are the input tokens), `mse`, `l1`, `bce`, `model` (the loss that a Hugging Face model"
            " computes itself), or `package.module:function` of (outputs, targets)."
        ),
    ] = "cross-entropy"
    metrics: Annotated[
        tuple[str, ...],
        doc(
            "Metrics besides the loss, by name (`accuracy`, `top-5`, `perplexity`, `f1`, `mean-iou`, `mae`, `rmse`,"
            " `r2`) or as `package.module:function`; by default accuracy where the targets are class labels."
        ),
    ] = ()
    costs: Annotated[
        str | None,
        doc("Built-in model whose time and bytes are charged in a simulated run instead of the trained model's."),
    ] = None

    def __post_init__(self) -> None:
        if isinstance(self.model, ModelSource):
            if self.options:
                raise SettingError("options", "is for models given by name; write the model's settings into its table")
        elif ":" not in self.model:
            _check_zoo_name("model", self.model)
        if self.costs is not None:
            _check_zoo_name("costs", self.costs)
        try:
            resolve_metrics([name for name in self.metrics if ":" not in name])
        except SettingError as error:
            raise SettingError("metrics", error.problem) from None
        if ":" not in self.loss and self.loss not in LOSSES:
            raise SettingError("loss", f"{self.loss!r} is not one of {', '.join(LOSSES)}, nor package.module:function")

    @property
    def name(self) -> str:
        return f"{self.model_name} on {self.data.name}"

    @property
    def model_name(self) -> str:
        return self.model.name if isinstance(self.model, ModelSource) else self.model

    def describe_model(self) -> tuple[Callable[[], nn.Module], InputSpec]:
        """A function that builds the model, and what its inputs look like; the data set is described, not loaded."""
        info = self.data.info(None)
        _check_zoo_fit(self, info)
        spec = InputSpec.of_shape(info.shape, torch.int64 if info.vocabulary else torch.float32)
        return self.model_factory(info.shape, len(info.classes), info.vocabulary), spec

    def model_factory(self, shape: tuple[int, ...], classes: int, vocabulary: int = 0) -> Callable[[], nn.Module]:
        """A function that builds the model for samples of this shape; `vocabulary` counts the tokens of a text."""
        factory = self._base_factory(shape, classes, vocabulary)
        return factory if self.norm == "batch" else lambda: self._with_group_norms(factory())

    def _with_group_norms(self, module: nn.Module) -> nn.Module:
        if not has_batch_norm(module):
            raise SettingError("task.norm", f"{self.model_name} has no batch norms that could be replaced; remove it")
        return replace_batch_norms(module)

    def _base_factory(self, shape: tuple[int, ...], classes: int, vocabulary: int) -> Callable[[], nn.Module]:
        if isinstance(self.model, ModelSource):
            source = self.model
            return lambda: source.build(classes, vocabulary)
        if ":" in self.model:
            factory = load_object(self.model, "task.model")
            return lambda: _require_module(factory(**self.options), self.model_name)
        derived: dict[str, Any] = {"classes": classes} if classes else {}
        name = self.model
        known = zoo.model_options(name)
        if "side" in known and len(shape) == 3:
            derived["side"] = shape[-1]
        if "channels" in known and len(shape) == 3:
            derived["channels"] = shape[0]
        if "vocabulary" in known and vocabulary:
            derived["vocabulary"] = vocabulary
        if "block" in known and len(shape) == 1:
            derived["block"] = shape[0]
        options = {**derived, **self.options}
        return lambda: zoo.build_model(name, **options)


def build_task(settings: TaskSettings | str, root: Path | None) -> Task:
    """Load the task that a job names."""
    if isinstance(settings, str):
        named = load_object(settings, "task")
        task = _call_task_function(named, settings) if callable(named) and not isinstance(named, Task) else named
        if not isinstance(task, Task):
            raise SettingError("task", f"{settings!r} must be a potluck.Task or return one, got {type(task).__name__}")
        return task
    data = load(settings.data, root, augment=settings.augment)
    if not len(data.train):
        raise DataError(f"data set {data.name!r} has no training samples")
    data, name = _fit_targets(settings, data)
    loss: Loss = load_object(name, "task.loss") if ":" in name else LOSSES[name]
    if loss is cross_entropy and data.vocabulary and data.shape == (data.vocabulary,):
        loss = token_cross_entropy  # blocks as long as the vocabulary do not show which dimension has the classes
    if settings.loss in ("mse", "l1") and data.train.has_labels:
        raise SettingError(
            "task.loss", f"{settings.loss!r} needs floating-point targets; {data.name!r} has class labels"
        )
    _check_zoo_fit(settings, data)
    model = settings.model_factory(data.shape, len(data.classes), data.vocabulary)
    return Task(model, data, loss, settings.metrics, settings.name)


def _fit_targets(settings: TaskSettings, data: Dataset) -> tuple[Dataset, str]:
    """The data and the name of the loss as the model needs them."""
    loss = settings.loss
    predicts = settings.model.predicts if isinstance(settings.model, ModelSource) else None
    if loss == "model":
        if predicts is None:
            raise SettingError("task.loss", "'model' is for Hugging Face models, which compute their own loss")
        if predicts != "next token":
            return add_labels_to_inputs(data), loss
        if token_alignment(data) == "shifted":
            raise SettingError(
                "task.loss", f"'model' shifts the targets, but those of {data.name!r} are; use 'token-cross-entropy'"
            )
        return shift_targets(add_labels_to_inputs(data)), loss  # what metrics compare with
    if loss == "next-token" or (predicts == "next token" and loss in ("cross-entropy", "token-cross-entropy")):
        return _align_next_tokens(data, loss, "task.loss"), "token-cross-entropy"
    return data, "token-cross-entropy" if predicts == "token" and loss == "cross-entropy" else loss


def _align_next_tokens(data: Dataset, loss: str, key: str) -> Dataset:
    """The data with targets that are shifted by one; a loss that contradicts the data is refused."""
    alignment = token_alignment(data)
    if alignment == "same" and loss == "token-cross-entropy":
        raise SettingError(
            key,
            f"the targets of {data.name!r} are its input tokens, so the model would learn to copy them; use the loss"
            " 'next-token', or shift the targets with potluck.data.shift_targets",
        )
    if alignment == "shifted" and loss == "next-token":
        raise SettingError(
            key, f"'next-token' shifts the targets, but those of {data.name!r} are shifted; use 'token-cross-entropy'"
        )
    if alignment == "unknown" and loss == "cross-entropy":
        raise SettingError(
            key,
            f"it is not clear whether the targets of {data.name!r} are shifted by one (target t is token t + 1); use"
            " 'token-cross-entropy' if they are, 'next-token' if not",
        )
    return data if alignment == "shifted" or loss == "token-cross-entropy" else shift_targets(data)


def _check_zoo_fit(settings: TaskSettings, data: Dataset | Info) -> None:
    """Refuse a built-in model that reads pictures where the data is text, or the other way round."""
    name = settings.model
    if isinstance(name, ModelSource) or ":" in name:
        return
    takes_tokens, classifies = zoo.model_entry(name).takes_tokens, "classes" in zoo.model_options(name)
    problem = None
    if takes_tokens and not data.vocabulary and len(data.shape) != 1:
        problem = f"reads tokens, but {data.name!r} is not text; choose other data, such as generated-language"
    elif not takes_tokens and data.vocabulary:
        problem = f"does not read text, which {data.name!r} is; choose {'text-encoder' if data.classes else 'gpt'}"
    elif data.vocabulary and classifies and not data.classes:
        problem = f"classifies texts, but {data.name!r} has no classes; choose gpt"
    elif data.vocabulary and not classifies and data.classes:
        problem = f"predicts next tokens, but {data.name!r} has classes; choose text-encoder"
    if problem is not None:
        raise SettingError("task.model", f"{name!r} {problem}")
    for key, needed in (("vocabulary", data.vocabulary), ("block", data.shape[0] if data.vocabulary else 0)):
        given = settings.options.get(key)
        if isinstance(given, int) and given < needed:
            raise SettingError(f"task.options.{key}", f"{data.name!r} needs at least {needed}, not {given}; remove it")


def _check_zoo_name(key: str, name: str) -> None:
    try:
        zoo.model_entry(name)
    except ModelError as error:
        raise SettingError(key, str(error)) from None


def _call_task_function(function: Callable[[], Any], name: str) -> Any:
    try:
        return function()
    except UserError:
        raise
    except Exception as error:  # the user's function may raise anything
        raise SettingError("task", f"{name!r} fails: {describe_user_error(error)}") from error


def build_seeded(factory: Callable[[], nn.Module], seed: int, what: str) -> nn.Module:
    """What the factory builds with weights from the run's seed; ModelError says where it fails."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.child_seed(seed, "model"))
        try:
            return _require_module(factory(), what)
        except UserError:
            raise
        except Exception as error:  # a user's factory may raise anything
            raise ModelError(f"{what} cannot be built: {describe_user_error(error)}") from error


def _require_module(built: Any, what: str) -> nn.Module:
    if not isinstance(built, nn.Module):
        raise ModelError(f"{what} returns a {type(built).__name__}; it must return a torch.nn.Module")
    return built

"""Data sets from Python objects: tensors, arrays, `torch.utils.data` sets and loaders, Hugging Face data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from potluck.data.data_splits import split_holdout
from potluck.data.iterable_stream import NumberedIterable
from potluck.data.lazy_samples import Collate, LabelFunction, LazySamples, seed_generators
from potluck.data.samples import PLAIN, Dataset, Samples, SampleSet, Scaling
from potluck.errors import DataError

__all__ = ["as_dataset", "from_tensors", "from_torch"]

Values = Any  # a tensor, an array, or nested tuples, lists and dicts of them


def from_tensors(
    x: Values,
    y: Values,
    x_test: Values = None,
    y_test: Values = None,
    *,
    name: str = "own",
    classes: Sequence[str] | int | None = None,
    owner: npt.ArrayLike | None = None,
    owner_test: npt.ArrayLike | None = None,
    scaling: Scaling = PLAIN,
    label: LabelFunction | npt.ArrayLike | None = None,
    test_fraction: float = 0.2,
) -> Dataset:
    """Make a data set from tensors or arrays; integer targets (N,) are class labels starting at 0.

    Without test data, `test_fraction` of the samples is held out. `label` gives each sample a class that splits go by
    where the targets are not classes: an array, or a function of (input, target).
    """
    train = _make_samples("training", x, y, owner, scaling, label)
    if x_test is None and y_test is None:
        train, test = _hold_out_test(train, test_fraction)
    else:
        test = _make_samples("test", x_test, y_test, owner_test, scaling, label if callable(label) else None)
    return Dataset(name=name, train=train, test=test, classes=_class_names(classes, train))


def from_torch(
    train: Any,
    test: Any = None,
    *,
    name: str = "own",
    classes: Sequence[str] | int | None = None,
    owner: npt.ArrayLike | None = None,
    owner_test: npt.ArrayLike | None = None,
    scaling: Scaling = PLAIN,
    test_fraction: float = 0.2,
    collate: Collate | None = None,
    label: LabelFunction | Sequence[int] | None = None,
    inputs: str | Sequence[str] | None = None,
    target: str | None = None,
) -> Dataset:
    """Use a map-style data set, `DataLoader` or Hugging Face data set; without `test`, hold out `test_fraction` of it.

    Samples are read when they are needed and transforms run on every read. A plain `TensorDataset` is used as it is
    in memory. `inputs` and `target` name the keys of samples that are dicts.
    """
    reader = _SampleReader(collate, label, inputs, target, scaling)
    samples = reader.open_samples("training", train, owner)
    if test is not None:
        held_out: SampleSet = reader.open_samples("test", test, owner_test)
    else:
        samples, held_out = _hold_out_test(samples, test_fraction)
    if classes is None:
        classes = _known_classes(train)
    return Dataset(name=name, train=samples, test=held_out, classes=_class_names(classes, samples))


def as_dataset(data: Any) -> Dataset:
    """Any data that a task may be given, as a data set: ours, (x, y), (train, test), a data set or a loader."""
    if isinstance(data, Dataset):
        return data
    if hasattr(data, "keys") and "train" in data and not isinstance(data, Tensor):  # a Hugging Face DatasetDict
        return from_torch(data["train"], data.get("test"))
    if isinstance(data, tuple | list) and len(data) in (2, 4):
        if all(_is_data_set(part) for part in data) and len(data) == 2:
            return from_torch(*data)
        if not any(_is_data_set(part) for part in data):
            return from_tensors(*data)
    if _is_data_set(data):
        return from_torch(data)
    raise DataError(
        f"`data` is a {type(data).__name__}; expected (x, y), (x, y, x_test, y_test), a torch or Hugging Face data set,"
        " (train, test), a DataLoader, or potluck.data.from_tensors(...)"
    )


@dataclass(frozen=True)
class _SampleReader:
    """How the samples of a data set are read."""

    collate: Collate | None
    label: Any
    inputs: str | Sequence[str] | None
    target: str | None
    scaling: Scaling

    def open_samples(self, part: str, data: Any, owner: npt.ArrayLike | None) -> LazySamples | Samples:
        collate, owners = self.collate, None if owner is None else np.asarray(owner, np.int64)
        if isinstance(data, DataLoader):
            _check_loader(part, data)
            collate, data = collate or data.collate_fn, data.dataset
        if _is_hugging_face(data) and not hasattr(data, "__len__"):  # one that streams
            data = data.with_format("torch")
        if isinstance(data, IterableDataset):
            if part == "test":
                raise DataError("the test data set has no length; collect it into a list or tensors")
            data = NumberedIterable(data, seed_generators)
        if not hasattr(data, "__len__"):
            raise DataError(f"the {part} data set has no length; collect it into a list or tensors")
        if len(data) == 0:
            raise DataError(f"the {part} data set is empty")
        if type(data) is TensorDataset and collate in (None, default_collate):
            *x, y = data.tensors
            if x:
                return _make_samples(part, x[0] if len(x) == 1 else tuple(x), y, owner, self.scaling, self.label)
        if self.scaling is not PLAIN:
            raise DataError("`scaling` is for tensors in memory; normalise in the data set's transform")
        if _is_hugging_face(data) and data.format["type"] is None:
            data = data.with_format("torch")
        samples = LazySamples(data, collate or default_collate, owners, self.label, self.inputs, self.target)
        _check_first(part, samples)
        return samples


def _check_first(part: str, samples: LazySamples) -> None:
    """Read one sample, so that what cannot be read is said at once."""
    inputs, targets = samples.batch(np.arange(1))
    for what, tree in (("input", inputs), ("target", targets)):
        for leaf in tree_leaves(tree):
            if not isinstance(leaf, Tensor) or leaf.ndim == 0:
                kind = type(leaf).__name__
                raise DataError(f"the {what} of a {part} sample holds a {kind}; use a transform or `collate`")
            _check_layout(f"the {what} of a {part} sample", leaf)


def _check_loader(part: str, loader: DataLoader[Any]) -> None:
    """Refuse what decides which samples a batch has, beyond their order."""
    data: Any = loader.dataset
    if isinstance(data, IterableDataset):
        return
    sampler, batches, problem = loader.sampler, loader.batch_sampler, ""
    if type(sampler) not in (RandomSampler, SequentialSampler):
        problem = f"a {type(sampler).__name__}"
    elif type(batches) not in (BatchSampler, type(None)):
        problem = f"a {type(batches).__name__} of its own"
    elif isinstance(sampler, RandomSampler) and (sampler.replacement or sampler.num_samples != len(data)):
        problem = "a RandomSampler that draws with replacement or other than all samples"
    if problem:
        raise DataError(
            f"the {part} DataLoader has {problem}, but the run chooses each batch's samples; pass its dataset instead"
        )


def _is_data_set(data: Any) -> bool:
    is_torch = isinstance(data, torch.utils.data.Dataset | DataLoader)
    return is_torch or _is_hugging_face(data) or (hasattr(data, "__getitem__") and not _is_values(data))


def _is_values(data: Any) -> bool:
    return isinstance(data, Tensor | np.ndarray | tuple | list | dict | str | int | float)


def _is_hugging_face(data: Any) -> bool:
    return hasattr(data, "with_format") and hasattr(data, "column_names")


def _known_classes(train: Any) -> Sequence[str] | int | None:
    """The class names that a data set itself tells, as those of torchvision and Hugging Face do."""
    data = train.dataset if isinstance(train, DataLoader) else train
    names = getattr(data, "classes", None)
    if isinstance(names, Sequence) and all(isinstance(name, str) for name in names):
        return names
    features = getattr(data, "features", None) or {}
    for key in ("label", "labels"):
        names = getattr(features[key], "names", None) if key in features else None
        if names:
            return list(names)
    return None


def _make_samples(part: str, x: Values, y: Values, owner: Any, scaling: Scaling, label: Any) -> Samples:
    inputs = _to_tensors(part, x)
    targets = tree_map(_stored_target, _to_tensors(part, y))
    for leaf in tree_leaves(inputs):
        if leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
            raise DataError(f"{part} inputs hold values that are not finite; clean them first")
    owners = None if owner is None else np.asarray(owner, np.int64)
    samples = Samples(inputs, targets, owner=owners, scaling=scaling)
    if label is None:
        return samples
    labels = _call_label(label, samples) if callable(label) else np.asarray(label)
    if labels.shape != (len(samples),) or labels.dtype.kind not in "iub":
        raise DataError(f"`label` gives {labels.dtype} of shape {labels.shape}; each {part} sample needs one integer")
    return Samples(inputs, targets, owner=owners, scaling=scaling, label=labels.astype(np.int64))


def _call_label(label: LabelFunction, samples: Samples) -> npt.NDArray[np.int64]:
    def row(tree: Any, index: int) -> Any:
        return tree_map(lambda leaf: leaf[index], tree)

    return np.array([int(label(row(samples.x, index), row(samples.y, index))) for index in range(len(samples))])


def _to_tensors(part: str, values: Values) -> Any:
    """Arrays become tensors. A list of numbers or of lists is an array; one of tensors or arrays is nested."""
    if isinstance(values, list) and not any(isinstance(leaf, Tensor | np.ndarray) for leaf in tree_leaves(values)):
        values = np.asarray(values)
    leaves, tree = tree_flatten(values)
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            _check_layout(f"{part} data", leaf)
    try:
        tensors = [torch.as_tensor(leaf).detach().cpu() for leaf in leaves]
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{part} data cannot become tensors: {str(error).splitlines()[0]}") from error
    if any(tensor.ndim == 0 for tensor in tensors):
        raise DataError(f"{part} data needs one row for each sample, got a single number")
    return tree_unflatten(tensors, tree)


def _check_layout(what: str, tensor: Tensor) -> None:
    """Refuse tensors whose rows cannot be taken by index."""
    if tensor.is_nested:
        raise DataError(
            f"{what} is a nested tensor; pad it with .to_padded_tensor(0.0), or call .to_dense() on its parts"
        )
    if tensor.layout != torch.strided:
        raise DataError(f"{what} is a tensor of layout {tensor.layout}; call .to_dense() on it")


def _stored_target(tensor: Tensor) -> Tensor:
    """Class labels of any integer type are int64, as PyTorch's losses need them."""
    is_small = not tensor.is_floating_point() and tensor.dtype not in (torch.int64, torch.bool)
    return tensor.to(torch.int64) if is_small else tensor


def _class_names(classes: Sequence[str] | int | None, samples: SampleSet) -> tuple[str, ...]:
    if classes is None:
        y = samples.y if isinstance(samples, Samples) and samples.label is None else None
        if isinstance(samples, LazySamples) and samples.has_known_labels:
            y = torch.from_numpy(samples.labels)
        if not isinstance(y, Tensor) or y.dtype != torch.int64 or y.ndim != 1:
            return ()
        classes = int(y.max()) + 1 if len(y) else 0
    return tuple(str(number) for number in range(classes)) if isinstance(classes, int) else tuple(classes)


def _hold_out_test(samples: Any, fraction: float) -> tuple[Any, Any]:
    """Split off test samples: stratified by label where the samples in memory have labels."""
    count = len(samples)
    if samples.is_stream:
        raise DataError("an IterableDataset needs a test set of its own; pass `test`")
    if not 0 < fraction < 1 or count < 2:
        raise DataError(f"cannot hold out {fraction} of {count} samples for testing; pass a test set")
    labels = samples.labels if isinstance(samples, Samples) and samples.has_labels else np.zeros(count, np.int64)
    train, test = split_holdout(labels, max(1, round(fraction * count)))
    if isinstance(samples, Samples):
        return _rows(samples, train), _rows(samples, test)
    return samples.subset(train), samples.subset(test)


def _rows(samples: Samples, chosen: npt.NDArray[np.int64]) -> Samples:
    x, y = samples.stored_batch(chosen)
    picked = [None if values is None else values[chosen] for values in (samples.owner, samples.label)]
    return Samples(x, y, owner=picked[0], label=picked[1], scaling=samples.scaling)

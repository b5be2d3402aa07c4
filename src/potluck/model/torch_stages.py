"""The mathematics of a pipeline: what a stage does with a batch, and how versions of its numbers are made and moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from potluck import seeds
from potluck.model import stage_input_checks
from potluck.model.indexed_dataset import IndexedDataset, Indices
from potluck.model.micro_batches import MicroBatches
from potluck.model.model_replica import Loss
from potluck.model.model_state import ModelState
from potluck.model.optimizers import Optimizer
from potluck.model.stage_function import ForwardPass, StageFunctions
from potluck.model.stage_input_checks import TensorSpec
from potluck.payload import Payload

__all__ = ["StageState", "TorchStages"]

_EXAM = 256  # samples


@dataclass(frozen=True, slots=True)
class StageState:
    """One version of the layers `first` to `last`: weights, buffers and what the optimizer remembers; never changed."""

    first: int
    last: int
    params: Tensor
    buffers: Tensor
    moments: Mapping[str, Tensor]


class ForwardResult(NamedTuple):
    """A batch that went through a stage: what goes on, and what its way back needs."""

    payload: Payload | None  # None on the last stage
    forward_pass: ForwardPass
    loss: Tensor | None

    @property
    def buffers(self) -> Tensor:
        return self.forward_pass.buffers

    @property
    def loss_now(self) -> float | None:
        return None if self.loss is None else float(self.loss.detach())


class TorchStages:
    """All stages of one model, whoever runs them; every method is a function of what it is given."""

    def __init__(
        self,
        sections: StageFunctions,
        loss: Loss,
        optimizer: Optimizer,
        train: IndexedDataset,
        feed: MicroBatches,
        seed: int,
        test: IndexedDataset | None = None,
        classes: int = 0,
    ) -> None:
        self.chain = sections.chain
        self.layout = sections.layout
        self._sections = sections
        self._loss = loss
        self._optimizer = optimizer
        self._train = train
        self._feed = feed
        self._seed = seed
        self._test = test
        self._classes = classes  # that labels are counted in; 0 where that is not known
        self._crossing = lru_cache(maxsize=64)(partial(stage_input_checks.crossing_specs, sections.chain))
        self.moments = _moment_kinds(optimizer)  # name -> whether it is a vector beside the weights (else a number)

    # --- a batch ---------------------------------------------------------------------------------------------------

    def load_inputs(self, part: int) -> Payload:
        return _to_payload([self._micro_batch(part)[0]])

    def load_labels(self, part: int) -> Payload:
        return _to_payload([self._micro_batch(part)[1]])

    def forward(
        self,
        numbers: StageState,
        buffers: Tensor,
        part: int,
        arrived: Payload,
        labels: Payload | None,
        ahead: float = 0.0,
    ) -> ForwardResult:
        """Through the stage; with labels it is the last one and ends in the loss.

        The weights are taken to where they will be `ahead` steps from now if they go on as they went.
        """
        section = self._sections.for_layers(numbers.first, numbers.last)
        seed = seeds.child_seed(self._seed, "draws", part, numbers.first) if self._sections.is_random else None
        heading = self._optimizer.predicted_step(numbers.moments) if ahead else None
        params = numbers.params if heading is None else numbers.params - ahead * heading
        passed = section.forward(params, buffers, _to_tensors(arrived), seed)
        if labels is None:
            return ForwardResult(_to_payload(passed.sent_tensors), passed, None)
        loss = self._loss(passed.outputs, _to_tensors(labels)[0])
        return ForwardResult(None, passed, loss)

    def backward(self, forwarded: ForwardResult, gradient: Payload | None) -> tuple[Tensor, Payload]:
        """The gradient of the stage's weights, and what goes back to the stage before."""
        if forwarded.loss is not None:
            own, onward = forwarded.forward_pass.backward_from_loss(forwarded.loss)
        else:
            assert gradient is not None
            own, onward = forwarded.forward_pass.backward(_to_tensors(gradient))
        return own, _to_payload(onward)

    def micro_batch_weight(self, part: int) -> float:
        """What a part weighs in its batch."""
        return self._feed.batch_fraction(part)

    def accumulate_gradient(self, total: Tensor | None, gradient: Tensor, share: float) -> Tensor:
        """A sum of gradients, one part more."""
        weighed = gradient if share == 1.0 else gradient * share
        return weighed if total is None else total + weighed

    # --- versions --------------------------------------------------------------------------------------------------

    def initial_weights(self) -> StageState:
        """The whole model before training."""
        state = ModelState.of_module(self.chain.module, self.layout)
        return self._complete_state(0, self.layout.layer_count - 1, state.params, state.buffers, {})

    def step(self, numbers: StageState, gradient: Tensor, buffers: Tensor, lr: float) -> StageState:
        """The next version; `lr` is a schedule's factor."""
        optimizer = self._optimizer.build_optimizer(numbers.params.clone())
        (group,) = optimizer.param_groups
        (param,) = group["params"]
        param.grad = gradient
        group["lr"] *= lr
        optimizer.state[param] = {name: value.clone() for name, value in numbers.moments.items()}
        optimizer.step()
        moments = {name: optimizer.state[param][name] for name in numbers.moments}
        return StageState(numbers.first, numbers.last, param.data, buffers, moments)

    def average_versions(self, versions: Sequence[StageState]) -> StageState:
        """The last of some versions with the mean of all their weights."""
        newest = versions[-1]
        mean = torch.stack([version.params for version in versions]).mean(0)
        return StageState(newest.first, newest.last, mean, newest.buffers, newest.moments)

    # --- on the wire -----------------------------------------------------------------------------------------------

    def pack_layers(self, numbers: StageState, first: int, last: int, moments: bool = True) -> Payload:
        """Some layers of a version, as they travel."""
        params, buffers = self._slices_within(numbers, first, last)
        arrays = [numbers.params[params], numbers.buffers[buffers]]
        if moments:
            for name, vector in self.moments.items():
                arrays.append(numbers.moments[name][params] if vector else numbers.moments[name].reshape(1))
        return _to_payload(arrays)

    def join_layers(self, first: int, last: int, pieces: Sequence[tuple[int, int, Payload]]) -> StageState:
        """Numbers from the pieces of some layers, given in any order; moments that did not travel begin at zero."""
        parts = [self._unpack_state(*piece) for piece in sorted(pieces, key=lambda piece: piece[0])]
        assert [parts[0].first, parts[-1].last] == [first, last], "the pieces do not make up the layers"
        moments = {
            name: torch.cat([part.moments[name] for part in parts]) if vector else parts[0].moments[name]
            for name, vector in self.moments.items()
        }
        params = torch.cat([part.params for part in parts])
        return self._complete_state(first, last, params, torch.cat([part.buffers for part in parts]), moments)

    def pack_step(self, gradient: Tensor, buffers: Tensor) -> Payload:
        """A step as it travels to someone who holds the version before: less than the version itself."""
        return _to_payload([gradient, buffers])

    def apply_step(self, numbers: StageState, payload: Payload, lr: float) -> StageState:
        """The version that such a step leads to."""
        gradient, buffers = _to_tensors(payload)
        return self.step(numbers, gradient, buffers, lr)

    # --- what others send ------------------------------------------------------------------------------------------

    def activation_refusal(self, first: int, samples: int, payload: Payload) -> str | None:
        """Why this cannot be what arrives before a layer with so many samples."""
        return stage_input_checks.tensors_refusal(payload.arrays, self._crossing(first - 1, samples), "activations")

    def labels_refusal(self, samples: int, payload: Payload) -> str | None:
        """Why these cannot be the targets of so many samples."""
        one = self._train.batch(np.arange(1))[1]
        reason = stage_input_checks.tensors_refusal(
            payload.arrays, [TensorSpec((samples, *one.shape[1:]), one.dtype)], "labels"
        )
        if reason is None and self._classes and not one.is_floating_point():
            (labels,) = payload.arrays
            if labels.min() < 0 or labels.max() >= self._classes:
                return f"its labels go from {labels.min()} to {labels.max()}, of {self._classes} classes"
        return reason

    def gradient_refusal(self, forwarded: ForwardResult, payload: Payload) -> str | None:
        """Why this cannot be the gradient of what a stage had sent on."""
        forms = [
            stage_input_checks.tensor_spec(tensor)
            for tensor in forwarded.forward_pass.sent_tensors
            if tensor.is_floating_point()
        ]
        return stage_input_checks.tensors_refusal(payload.arrays, forms, "gradients")

    def weights_refusal(self, first: int, last: int, payload: Payload, step: bool = False) -> str | None:
        """Why these cannot be a version of some layers, or a step to one."""
        params, buffers = self.layout.layer_slices(first, last)
        sizes = [params.stop - params.start, buffers.stop - buffers.start]
        forms = [TensorSpec((size,), self.layout.dtype) for size in sizes]
        if not step and len(payload.arrays) != len(forms):
            forms += [forms[0] if vector else TensorSpec((1,), torch.float32) for vector in self.moments.values()]
        return stage_input_checks.tensors_refusal(payload.arrays, forms, "numbers")

    # --- held-out batches ------------------------------------------------------------------------------------------

    @property
    def evaluation_batches(self) -> int:
        """How many there are; none where the model's forward differs in evaluation and cannot be cut."""
        recording = self.chain.recording
        if self._test is None or recording is None or not recording.both_modes:
            return 0
        return -(-len(self._test) // _EXAM)

    def evaluation_batch_size(self, number: int) -> int:
        return len(self._evaluation_indices(number))

    def evaluation_inputs(self, number: int) -> Payload:
        return _to_payload([self._evaluation_batch(number)[0]])

    def evaluation_labels(self, number: int) -> Payload:
        return _to_payload([self._evaluation_batch(number)[1]])

    def evaluate_batch(self, numbers: StageState, arrived: Payload) -> Payload:
        """What a stage makes of a batch in evaluation."""
        section = self._sections.for_layers(numbers.first, numbers.last)
        outputs = section.evaluate(numbers.params, numbers.buffers, _to_tensors(arrived))
        return _to_payload(outputs if isinstance(outputs, tuple) else (outputs,))

    def evaluation_score(self, outputs: Payload, labels: Payload) -> tuple[float, int, int]:
        """Loss times samples, how many are right (below 0: no classes), samples."""
        found, given = EvaluationScore(), _to_tensors(outputs)
        found.add(given[0] if len(given) == 1 else given, _to_tensors(labels)[0], self._loss)
        return found.loss, found.right if found.classes else -1, found.count

    def _evaluation_batch(self, number: int) -> tuple[Tensor, Tensor]:
        assert self._test is not None
        return self._test.batch(self._evaluation_indices(number))

    def _evaluation_indices(self, number: int) -> Indices:
        assert self._test is not None
        return np.arange(number * _EXAM, min((number + 1) * _EXAM, len(self._test)))

    # --- the whole model -------------------------------------------------------------------------------------------

    def tensors(self, numbers: StageState) -> dict[str, Tensor]:
        """All that a checkpoint must hold, by name."""
        moments = {f"optimizer.{name}": value for name, value in numbers.moments.items()}
        return {"params": numbers.params, "buffers": numbers.buffers, **moments}

    def restore(self, tensors: Mapping[str, Tensor]) -> StageState:
        """The reverse of `tensors`."""
        moments = {name.removeprefix("optimizer."): value for name, value in tensors.items() if "." in name}
        return self._complete_state(0, self.layout.layer_count - 1, tensors["params"], tensors["buffers"], moments)

    def load_module(self, numbers: StageState) -> nn.Module:
        """The model with these numbers in it."""
        module = self.chain.module
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name, value in ModelState(numbers.params, numbers.buffers).named_tensors(self.layout).items():
                own[name].copy_(value if own[name].is_floating_point() else value.round())
        return module

    def evaluate_model(self, numbers: StageState, test: IndexedDataset, size: int = 512) -> dict[str, float]:
        """Loss and accuracy of the whole model; no accuracy for targets that are no classes."""
        found = EvaluationScore()
        for start in range(0, len(test), size):
            inputs, targets = test.batch(np.arange(start, min(start + size, len(test))))
            outputs = self._sections.whole_model.evaluate(numbers.params, numbers.buffers, (inputs,))
            found.add(outputs, targets, self._loss)
        return found.as_metrics()

    def _complete_state(
        self, first: int, last: int, params: Tensor, buffers: Tensor, moments: Mapping[str, Tensor]
    ) -> StageState:
        """With moments that are missing set to zero, which is how every optimizer begins."""
        filled = {
            name: moments[name] if name in moments else torch.zeros_like(params) if vector else torch.zeros(())
            for name, vector in self.moments.items()
        }
        return StageState(first, last, params, buffers, filled)

    def _unpack_state(self, first: int, last: int, payload: Payload) -> StageState:
        params, buffers, *moments = _to_tensors(payload)
        named = {
            name: value if vector else value.reshape(())
            for (name, vector), value in zip(self.moments.items(), moments, strict=False)
        }
        return self._complete_state(first, last, params, buffers, named)

    def _slices_within(self, numbers: StageState, first: int, last: int) -> tuple[slice, slice]:
        """Where some layers lie in the vectors of a version."""
        assert numbers.first <= first <= last <= numbers.last, "layers that are not there"
        own = self.layout.layer_slices(numbers.first, numbers.last)
        wanted = self.layout.layer_slices(first, last)
        params, buffers = (
            slice(inner.start - outer.start, inner.stop - outer.start) for outer, inner in zip(own, wanted, strict=True)
        )
        return params, buffers

    def _micro_batch(self, part: int) -> tuple[Tensor, Tensor]:
        rng = seeds.child_generator(self._seed, "augment", part) if self._train.needs_rng else None
        return self._train.batch(self._feed.sample_indices(part), rng)


class EvaluationScore:
    """Loss and accuracy added up over batches."""

    def __init__(self) -> None:
        self.loss, self.right, self.count = 0.0, 0, 0
        self.classes = True

    def add(self, outputs: Any, targets: Tensor, loss: Callable[[Any, Tensor], Tensor]) -> None:
        self.loss += float(loss(outputs, targets)) * len(targets)
        self.count += len(targets)
        classes = isinstance(outputs, Tensor) and outputs.ndim == 2 and not targets.is_floating_point()
        self.classes = self.classes and classes
        if self.classes:
            self.right += int((outputs.argmax(1) == targets).sum())

    def as_metrics(self) -> dict[str, float]:
        score = {"loss": self.loss / self.count}
        return {**score, "accuracy": self.right / self.count} if self.classes else score


def _to_payload(tensors: Sequence[Tensor]) -> Payload:
    arrays = tuple(tensor.detach().numpy() for tensor in tensors)
    return Payload(sum(array.nbytes for array in arrays), arrays)


def _to_tensors(payload: Payload) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(array) for array in payload.arrays)


def _moment_kinds(optimizer: Optimizer) -> dict[str, bool]:
    """What an optimizer remembers, seen after one step on two numbers."""
    built = optimizer.build_optimizer(torch.zeros(2))
    (param,) = built.param_groups[0]["params"]
    param.grad = torch.zeros(2)
    built.step()
    found = {name: value for name, value in built.state[param].items() if isinstance(value, Tensor)}
    return {name: value.dim() > 0 for name, value in sorted(found.items())}

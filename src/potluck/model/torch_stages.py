"""The tensor operations of a pipeline: forward and backward of a stage, weight versions, and their transfer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from potluck import seeds
from potluck.model import stage_input_checks
from potluck.model.evaluation_score import EvaluationScore
from potluck.model.indexed_dataset import IndexedDataset, Indices, MicroBatches
from potluck.model.model_replica import Loss
from potluck.model.model_state import ModelState
from potluck.model.optimizers import Optimizer
from potluck.model.stage_function import ForwardPass, StageFunctions
from potluck.model.stage_input_checks import TensorSpec
from potluck.payload import Payload

__all__ = ["StageState", "TorchStages"]

_EVALUATION_BATCH = 256  # samples


@dataclass(frozen=True, slots=True)
class StageState:
    """One immutable version of the layers `first` to `last`: weights, buffers and optimizer state."""

    first: int
    last: int
    params: Tensor
    buffers: Tensor
    moments: Mapping[str, Tensor]


class ForwardResult(NamedTuple):
    """A micro-batch's pass through a stage: what is sent on, and what its backward needs."""

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
    """All stages of one model; every method is a pure function of its arguments, on whichever device it runs."""

    def __init__(
        self,
        functions: StageFunctions,
        loss: Loss,
        optimizer: Optimizer,
        train: IndexedDataset,
        micro_batches: MicroBatches,
        seed: int,
        test: IndexedDataset | None = None,
        classes: int = 0,
    ) -> None:
        self.chain = functions.chain
        self.layout = functions.layout
        self._functions = functions
        self._loss = loss
        self._optimizer = optimizer
        self._train = train
        self._micro_batches = micro_batches
        self._seed = seed
        self._test = test
        self._classes = classes  # the number of classes; 0 if unknown
        self._crossing = lru_cache(maxsize=64)(partial(stage_input_checks.crossing_specs, functions.chain))
        self.moments = _moment_kinds(optimizer)  # name -> whether it is a vector like the weights (else a scalar)

    # --- micro-batches ---------------------------------------------------------------------------------------------

    def load_inputs(self, micro_batch: int) -> Payload:
        return _to_payload([self._micro_batch(micro_batch)[0]])

    def load_labels(self, micro_batch: int) -> Payload:
        return _to_payload([self._micro_batch(micro_batch)[1]])

    def forward(
        self,
        state: StageState,
        buffers: Tensor,
        micro_batch: int,
        inputs: Payload,
        labels: Payload | None,
        ahead: float = 0.0,
    ) -> ForwardResult:
        """Pass a micro-batch through the stage; labels are for the last stage, which computes the loss.

        The weights are extrapolated by `ahead` steps along the optimizer's momentum.
        """
        function = self._functions.for_layers(state.first, state.last)
        seed = seeds.child_seed(self._seed, "draws", micro_batch, state.first) if self._functions.is_random else None
        predicted = self._optimizer.predicted_step(state.moments) if ahead else None
        params = state.params if predicted is None else state.params - ahead * predicted
        forward_pass = function.forward(params, buffers, _to_tensors(inputs), seed)
        if labels is None:
            return ForwardResult(_to_payload(forward_pass.sent_tensors), forward_pass, None)
        loss = self._loss(forward_pass.outputs, _to_tensors(labels)[0])
        return ForwardResult(None, forward_pass, loss)

    def backward(self, forwarded: ForwardResult, gradient: Payload | None) -> tuple[Tensor, Payload]:
        """The gradient of the stage's weights, and what is sent back to the previous stage."""
        if forwarded.loss is not None:
            own, onward = forwarded.forward_pass.backward_from_loss(forwarded.loss)
        else:
            assert gradient is not None
            own, onward = forwarded.forward_pass.backward(_to_tensors(gradient))
        return own, _to_payload(onward)

    def micro_batch_weight(self, micro_batch: int) -> float:
        """A micro-batch's fraction of its batch."""
        return self._micro_batches.batch_fraction(micro_batch)

    def accumulate_gradient(self, total: Tensor | None, gradient: Tensor, weight: float) -> Tensor:
        """The sum of a batch's gradients with one more micro-batch added."""
        weighted = gradient if weight == 1.0 else gradient * weight
        return weighted if total is None else total + weighted

    # --- versions --------------------------------------------------------------------------------------------------

    def initial_weights(self) -> StageState:
        """The whole model before training, as one version."""
        state = ModelState.of_module(self.chain.module, self.layout)
        return self._complete_state(0, self.layout.layer_count - 1, state.params, state.buffers, {})

    def step(self, state: StageState, gradient: Tensor, buffers: Tensor, lr: float) -> StageState:
        """The next version; `lr` is the schedule's factor."""
        optimizer = self._optimizer.build_optimizer(state.params.clone())
        (group,) = optimizer.param_groups
        (param,) = group["params"]
        param.grad = gradient
        group["lr"] *= lr
        optimizer.state[param] = {name: value.clone() for name, value in state.moments.items()}
        optimizer.step()
        moments = {name: optimizer.state[param][name] for name in state.moments}
        return StageState(state.first, state.last, param.data, buffers, moments)

    def average_versions(self, versions: Sequence[StageState]) -> StageState:
        """The last of these versions, with the mean of all their weights."""
        newest = versions[-1]
        mean = torch.stack([version.params for version in versions]).mean(0)
        return StageState(newest.first, newest.last, mean, newest.buffers, newest.moments)

    # --- transfer --------------------------------------------------------------------------------------------------

    def pack_layers(self, state: StageState, first: int, last: int, moments: bool = True) -> Payload:
        """Some layers of a version, ready to be sent."""
        params, buffers = self._slices_within(state, first, last)
        arrays = [state.params[params], state.buffers[buffers]]
        if moments:
            for name, vector in self.moments.items():
                arrays.append(state.moments[name][params] if vector else state.moments[name].reshape(1))
        return _to_payload(arrays)

    def join_layers(self, first: int, last: int, segments: Sequence[tuple[int, int, Payload]]) -> StageState:
        """A version from segments of its layers, given in any order; moments that were not sent start at zero."""
        states = [self._unpack_state(*segment) for segment in sorted(segments, key=lambda segment: segment[0])]
        assert [states[0].first, states[-1].last] == [first, last], "the segments do not cover the layers"
        moments = {
            name: torch.cat([state.moments[name] for state in states]) if vector else states[0].moments[name]
            for name, vector in self.moments.items()
        }
        params = torch.cat([state.params for state in states])
        return self._complete_state(first, last, params, torch.cat([state.buffers for state in states]), moments)

    def pack_step(self, gradient: Tensor, buffers: Tensor) -> Payload:
        """A step for a device that holds the previous version: smaller than the new version itself."""
        return _to_payload([gradient, buffers])

    def apply_step(self, state: StageState, payload: Payload, lr: float) -> StageState:
        """The version that a packed step leads to."""
        gradient, buffers = _to_tensors(payload)
        return self.step(state, gradient, buffers, lr)

    # --- checks of received tensors --------------------------------------------------------------------------------

    def activation_refusal(self, first: int, samples: int, payload: Payload) -> str | None:
        """Why this cannot be the input of layer `first` for this many samples; None if it can."""
        return stage_input_checks.tensors_refusal(payload.arrays, self._crossing(first - 1, samples), "activations")

    def labels_refusal(self, samples: int, payload: Payload) -> str | None:
        """Why these cannot be the targets of this many samples; None if they can."""
        one = self._train.batch(np.arange(1))[1]
        reason = stage_input_checks.tensors_refusal(
            payload.arrays, [TensorSpec((samples, *one.shape[1:]), one.dtype)], "labels"
        )
        if reason is None and self._classes and not one.is_floating_point():
            (labels,) = payload.arrays
            if labels.min() < 0 or labels.max() >= self._classes:
                return f"its labels range from {labels.min()} to {labels.max()}, but there are {self._classes} classes"
        return reason

    def gradient_refusal(self, forwarded: ForwardResult, payload: Payload) -> str | None:
        """Why this cannot be the gradient of what a stage sent on; None if it can."""
        specs = [
            stage_input_checks.tensor_spec(tensor)
            for tensor in forwarded.forward_pass.sent_tensors
            if tensor.is_floating_point()
        ]
        return stage_input_checks.tensors_refusal(payload.arrays, specs, "gradients")

    def weights_refusal(self, first: int, last: int, payload: Payload, step: bool = False) -> str | None:
        """Why this cannot be a version of some layers, or a step to one; None if it can."""
        params, buffers = self.layout.layer_slices(first, last)
        sizes = [params.stop - params.start, buffers.stop - buffers.start]
        specs = [TensorSpec((size,), self.layout.dtype) for size in sizes]
        if not step and len(payload.arrays) != len(specs):
            specs += [specs[0] if vector else TensorSpec((1,), torch.float32) for vector in self.moments.values()]
        return stage_input_checks.tensors_refusal(payload.arrays, specs, "weights")

    # --- held-out batches ------------------------------------------------------------------------------------------

    @property
    def evaluation_batches(self) -> int:
        """How many there are; none if the stages cannot run in evaluation mode."""
        recording = self.chain.recording
        if self._test is None or recording is None or not recording.both_modes:
            return 0
        return -(-len(self._test) // _EVALUATION_BATCH)

    def evaluation_batch_size(self, number: int) -> int:
        return len(self._evaluation_indices(number))

    def evaluation_inputs(self, number: int) -> Payload:
        return _to_payload([self._evaluation_batch(number)[0]])

    def evaluation_labels(self, number: int) -> Payload:
        return _to_payload([self._evaluation_batch(number)[1]])

    def evaluate_batch(self, state: StageState, inputs: Payload) -> Payload:
        """A stage's output for a batch in evaluation mode."""
        function = self._functions.for_layers(state.first, state.last)
        outputs = function.evaluate(state.params, state.buffers, _to_tensors(inputs))
        return _to_payload(outputs if isinstance(outputs, tuple) else (outputs,))

    def evaluation_score(self, outputs: Payload, labels: Payload) -> tuple[float, int, int]:
        """Loss times samples, correct predictions (-1 if the targets are not classes), samples."""
        score, tensors = EvaluationScore(), _to_tensors(outputs)
        score.add_batch(tensors[0] if len(tensors) == 1 else tensors, _to_tensors(labels)[0], self._loss)
        return score.loss, score.correct if score.has_classes else -1, score.count

    def _evaluation_batch(self, number: int) -> tuple[Tensor, Tensor]:
        assert self._test is not None
        return self._test.batch(self._evaluation_indices(number))

    def _evaluation_indices(self, number: int) -> Indices:
        assert self._test is not None
        return np.arange(number * _EVALUATION_BATCH, min((number + 1) * _EVALUATION_BATCH, len(self._test)))

    # --- the whole model -------------------------------------------------------------------------------------------

    def tensors(self, state: StageState) -> dict[str, Tensor]:
        """Everything that a checkpoint must contain, by name."""
        moments = {f"optimizer.{name}": value for name, value in state.moments.items()}
        return {"params": state.params, "buffers": state.buffers, **moments}

    def restore(self, tensors: Mapping[str, Tensor]) -> StageState:
        """The reverse of `tensors`."""
        moments = {name.removeprefix("optimizer."): value for name, value in tensors.items() if "." in name}
        return self._complete_state(0, self.layout.layer_count - 1, tensors["params"], tensors["buffers"], moments)

    def load_module(self, state: StageState) -> nn.Module:
        """The model with these weights loaded."""
        module = self.chain.module
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name, value in ModelState(state.params, state.buffers).named_tensors(self.layout).items():
                own[name].copy_(value if own[name].is_floating_point() else value.round())
        return module

    def evaluate_model(self, state: StageState, test: IndexedDataset, size: int = 512) -> dict[str, float]:
        """Loss and accuracy of the whole model; no accuracy if the targets are not class labels."""
        score = EvaluationScore()
        for start in range(0, len(test), size):
            inputs, targets = test.batch(np.arange(start, min(start + size, len(test))))
            outputs = self._functions.whole_model.evaluate(state.params, state.buffers, (inputs,))
            score.add_batch(outputs, targets, self._loss)
        return score.as_metrics()

    def _complete_state(
        self, first: int, last: int, params: Tensor, buffers: Tensor, moments: Mapping[str, Tensor]
    ) -> StageState:
        """Fill in missing moments with zeros, the initial state of every optimizer."""
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

    def _slices_within(self, state: StageState, first: int, last: int) -> tuple[slice, slice]:
        """The slices of some layers in the vectors of a version."""
        assert state.first <= first <= last <= state.last, "layers are missing"
        own = self.layout.layer_slices(state.first, state.last)
        wanted = self.layout.layer_slices(first, last)
        params, buffers = (
            slice(inner.start - outer.start, inner.stop - outer.start) for outer, inner in zip(own, wanted, strict=True)
        )
        return params, buffers

    def _micro_batch(self, micro_batch: int) -> tuple[Tensor, Tensor]:
        rng = seeds.child_generator(self._seed, "augment", micro_batch) if self._train.needs_rng else None
        return self._train.batch(self._micro_batches.sample_indices(micro_batch), rng)


def _to_payload(tensors: Sequence[Tensor]) -> Payload:
    arrays = tuple(tensor.detach().numpy() for tensor in tensors)
    return Payload(sum(array.nbytes for array in arrays), arrays)


def _to_tensors(payload: Payload) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(array) for array in payload.arrays)


def _moment_kinds(optimizer: Optimizer) -> dict[str, bool]:
    """The names of an optimizer's state tensors, and which of them are vectors, observed after one step."""
    built = optimizer.build_optimizer(torch.zeros(2))
    (param,) = built.param_groups[0]["params"]
    param.grad = torch.zeros(2)
    built.step()
    tensors = {name: value for name, value in built.state[param].items() if isinstance(value, Tensor)}
    return {name: value.dim() > 0 for name, value in sorted(tensors.items())}

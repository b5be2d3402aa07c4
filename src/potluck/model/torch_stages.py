"""The tensor operations of a pipeline: forward and backward of a stage, weight versions, and their transfer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from potluck import seeds
from potluck.model import stage_input_checks
from potluck.model.evaluation_score import EvaluationScore, iter_evaluation_batches
from potluck.model.frozen_weights import FrozenWeights
from potluck.model.indexed_dataset import IndexedDataset, Indices, PipelineData
from potluck.model.input_spec import InputSpec
from potluck.model.layer_timing import run_each_layer
from potluck.model.metrics import TaskMetrics
from potluck.model.model_replica import Loss
from potluck.model.model_state import ModelState
from potluck.model.optimizers import Optimizer
from potluck.model.stage_function import ForwardPass, StageFunctions
from potluck.model.stage_input_checks import TensorSpec
from potluck.model.stage_score import StageScore
from potluck.payload import Payload

__all__ = ["EVALUATION_BATCH", "StageState", "TorchStages"]

EVALUATION_BATCH = 256  # samples
_LABEL = InputSpec.of_shape((), torch.int64)


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
        data: PipelineData,
        seed: int,
        metrics: TaskMetrics | None = None,
    ) -> None:
        self.chain = functions.chain
        self.layout = functions.layout
        self._frozen = FrozenWeights.of_chain(functions.chain, functions.layout)
        self._functions = functions
        self._loss = loss
        self._optimizer = optimizer
        self._data = data
        self._seed = seed
        self._metrics = metrics or TaskMetrics()
        self._crossing = lru_cache(maxsize=64)(partial(stage_input_checks.crossing_specs, functions.chain))
        self._target_spec = InputSpec.of_batch(data.train.batch(np.arange(1))[1])
        self.moments = _moment_kinds(optimizer)  # name -> whether it is a vector like the weights (else a scalar)

    # --- micro-batches ---------------------------------------------------------------------------------------------

    def run_layers(self, samples: int, next_pass: Callable[[], None]) -> None:
        """Run every layer on its own, forward and then backward; `next_pass` is called before each of these passes."""
        run_each_layer(self.chain, samples, next_pass)

    def load_inputs(self, micro_batch: int) -> Payload:
        return _to_payload(tree_leaves(self._micro_batch(micro_batch)[0]))

    def load_labels(self, micro_batch: int) -> Payload:
        return _to_payload(tree_leaves(self._micro_batch(micro_batch)[1]))

    def forward(
        self,
        state: StageState,
        buffers: Tensor,
        micro_batch: int,
        inputs: Payload,
        labels: Payload | None,
        ahead: float = 0.0,
        before_layer: Callable[[], None] | None = None,
    ) -> ForwardResult:
        """Pass a micro-batch through the stage; labels are for the last stage, which computes the loss.

        The weights are extrapolated by `ahead` steps along the optimizer's momentum.
        """
        function = self._functions.for_layers(state.first, state.last)
        seed = seeds.child_seed(self._seed, "draws", micro_batch, state.first) if self._functions.is_random else None
        predicted = self._optimizer.predicted_step(state.moments) if ahead else None
        params = state.params if predicted is None else state.params - ahead * predicted
        forward_pass = function.forward(params, buffers, _to_tensors(inputs), seed, before_layer)
        if labels is None:
            return ForwardResult(_to_payload(forward_pass.sent_tensors), forward_pass, None)
        loss = self._loss(forward_pass.outputs, self._target_spec.unflatten(_to_tensors(labels)))
        return ForwardResult(None, forward_pass, loss)

    def backward(
        self, forwarded: ForwardResult, gradient: Payload | None, before_layer: Callable[[], None] | None = None
    ) -> tuple[Tensor, Payload]:
        """The gradient of the stage's weights, and what is sent back to the previous stage."""
        if forwarded.loss is not None:
            own, onward = forwarded.forward_pass.backward_from_loss(forwarded.loss, before_layer)
        else:
            assert gradient is not None
            own, onward = forwarded.forward_pass.backward(_to_tensors(gradient), before_layer)
        return own, _to_payload(onward)

    def micro_batch_weight(self, micro_batch: int) -> float:
        """A micro-batch's fraction of its batch."""
        return self._data.micro_batches.batch_fraction(micro_batch)

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
        spec = self._target_spec
        shapes = [TensorSpec((samples, *shape), dtype) for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)]
        reason = stage_input_checks.tensors_refusal(payload.arrays, shapes, "labels")
        if reason is None and self._data.classes and spec == _LABEL:
            (labels,) = payload.arrays
            if labels.min() < 0 or labels.max() >= self._data.classes:
                classes = f"there are {self._data.classes} classes"
                return f"its labels range from {labels.min()} to {labels.max()}, but {classes}"
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
        if self._data.test is None or recording is None or not recording.both_modes:
            return 0
        return -(-len(self._data.test) // EVALUATION_BATCH)

    def evaluation_batch_size(self, number: int) -> int:
        return len(self._evaluation_indices(number))

    def evaluation_inputs(self, number: int) -> Payload:
        return _to_payload(tree_leaves(self._evaluation_batch(number)[0]))

    def evaluation_labels(self, number: int) -> Payload:
        return _to_payload(tree_leaves(self._evaluation_batch(number)[1]))

    def evaluate_batch(self, state: StageState, inputs: Payload) -> Any:
        """What a stage sends on for a batch in evaluation mode; the last one's are the model's outputs themselves."""
        function = self._functions.for_layers(state.first, state.last)
        outputs = function.evaluate(state.params, state.buffers, _to_tensors(inputs))
        if state.last == self.layout.layer_count - 1:
            return outputs
        return _to_payload(outputs if isinstance(outputs, tuple) else (outputs,))

    def start_score(self) -> StageScore:
        """Sums over no batches, for the last stage."""
        return StageScore(EvaluationScore(self._loss, self._metrics), self._target_spec)

    def metrics_refusal(self, values: Mapping[str, float]) -> str | None:
        """Why these cannot be the values of the task's metrics; None if they can."""
        return self._metrics.values_refusal(values)

    def _evaluation_batch(self, number: int) -> tuple[Any, Any]:
        assert self._data.test is not None
        return self._data.test.batch(self._evaluation_indices(number))

    def _evaluation_indices(self, number: int) -> Indices:
        assert self._data.test is not None
        return np.arange(number * EVALUATION_BATCH, min((number + 1) * EVALUATION_BATCH, len(self._data.test)))

    # --- the whole model -------------------------------------------------------------------------------------------

    def tensors(self, state: StageState) -> dict[str, Tensor]:
        """Everything that a checkpoint must contain, by name."""
        moments = {f"optimizer.{name}": value for name, value in state.moments.items()}
        frozen = self._frozen.checkpoint_tensors()
        return {"params": state.params, "buffers": state.buffers, **moments, **frozen}

    def restore(self, tensors: Mapping[str, Tensor]) -> StageState:
        """The reverse of `tensors`; RunError if the model has other frozen weights now."""
        self._frozen.check_checkpoint(tensors)
        moments = {name.removeprefix("optimizer."): value for name, value in tensors.items() if "." in name}
        return self._complete_state(0, self.layout.layer_count - 1, tensors["params"], tensors["buffers"], moments)

    def load_module(self, state: StageState, module: nn.Module | None = None) -> nn.Module:
        """The model, or a copy of it, with these weights loaded."""
        module = module or self.chain.module
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name, value in ModelState(state.params, state.buffers).named_tensors(self.layout).items():
                own[name].copy_(value if own[name].is_floating_point() else value.round())
        return module

    def evaluate_model(self, state: StageState, test: IndexedDataset) -> dict[str, float]:
        """Loss and metrics of the whole model; nothing if there are no samples."""

        def run_model(inputs: Any) -> Any:
            return self._functions.whole_model.evaluate(state.params, state.buffers, tuple(tree_leaves(inputs)))

        score = EvaluationScore(self._loss, self._metrics)
        for inputs, targets in iter_evaluation_batches(test, run_model):
            score.add_batch(run_model(inputs), targets)
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

    def _micro_batch(self, micro_batch: int) -> tuple[Any, Any]:
        rng = seeds.child_generator(self._seed, "augment", micro_batch) if self._data.train.needs_rng else None
        return self._data.train.batch(self._data.micro_batches.sample_indices(micro_batch), rng)


def _to_payload(tensors: Sequence[Tensor]) -> Payload:
    arrays = tuple(stage_input_checks.to_array(tensor.detach()) for tensor in tensors)
    return Payload(sum(array.nbytes for array in arrays), arrays)


def _to_tensors(payload: Payload) -> tuple[Tensor, ...]:
    return tuple(stage_input_checks.to_tensor(array) for array in payload.arrays)


def _moment_kinds(optimizer: Optimizer) -> dict[str, bool]:
    """The names of an optimizer's state tensors, and which of them are vectors, observed after one step."""
    built = optimizer.build_optimizer(torch.zeros(2))
    (param,) = built.param_groups[0]["params"]
    param.grad = torch.zeros(2)
    built.step()
    tensors = {name: value for name, value in built.state[param].items() if isinstance(value, Tensor)}
    return {name: value.dim() > 0 for name, value in sorted(tensors.items())}

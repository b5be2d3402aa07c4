"""One device trains every kind of task as a plain PyTorch loop does, bit for bit; a pipeline as the whole model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.utils.data
from torch import Tensor, nn

import potluck
from potluck import seeds
from potluck.data import from_torch
from potluck.job import make
from potluck.loops.parts.batching import FixedBatching
from potluck.model import zoo
from potluck.model.input_spec import call_model
from potluck.model.losses import cross_entropy, mse

BATCH, ROUNDS = 6, 4
TOKENS = torch.randint(0, 11, (42, 9), generator=torch.Generator().manual_seed(4))


pytestmark = pytest.mark.usefixtures("one_thread")


class Tagger(nn.Module):
    """Takes a dict of tensors of different dtypes, as Hugging Face models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.mix = nn.Linear(7, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor, mask: Tensor, weight: Tensor | None = None) -> dict[str, Tensor]:
        assert weight is not None
        kept = mask.unsqueeze(-1).to(weight.dtype)
        mean = (self.embed(ids) * kept).sum(1) / kept.sum(1)
        return {"logits": self.head(torch.relu(self.mix(torch.cat([mean, weight], 1))))}


class Noisy(torch.utils.data.Dataset[Any]):
    """Its transform is random on every read."""

    def __len__(self) -> int:
        return 42

    def __getitem__(self, index: int) -> Any:
        return TOKENS[index, :6].float() + torch.randn(6), int(TOKENS[index, 0]) % 3


class Kind(NamedTuple):
    model: Callable[[], nn.Module]
    data: Callable[[], Any]
    loss: Callable[[Any, Any], Tensor] = cross_entropy


def gpt() -> nn.Module:
    return zoo.build_model("gpt", vocabulary=11, block=8, depth=2, width=8, heads=2)


def lora() -> nn.Module:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=16,
    )  # fmt: skip
    adapted: nn.Module = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    return adapted


def tagger_data() -> Any:
    generator = torch.Generator().manual_seed(5)
    mask = torch.rand(42, 9, generator=generator) > 0.3
    mask[:, 0] = True
    weight = torch.rand(42, 1, generator=generator)
    return {"ids": TOKENS, "mask": mask, "weight": weight}, TOKENS[:, 0] % 3


def tagger_loss(outputs: Any, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs["logits"], targets)


def segmenter() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def segmentation_data() -> Any:
    images = torch.randn(42, 1, 6, 6, generator=torch.Generator().manual_seed(6))
    return images, (images[:, 0] > 0).long()


KINDS = {
    "text": Kind(gpt, lambda: (TOKENS[:, :-1], TOKENS[:, 1:])),
    "dict inputs and outputs": Kind(Tagger, tagger_data, tagger_loss),
    "segmentation": Kind(segmenter, segmentation_data),
    "regression": Kind(lambda: nn.Linear(9, 2), lambda: (TOKENS.float(), TOKENS[:, :2].float()), mse),
    "LoRA": Kind(lora, lambda: ({"input_ids": TOKENS[:, :-1]}, TOKENS[:, 1:])),
    "lazily transformed": Kind(classifier, lambda: from_torch(Noisy())),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_one_device_with_adamw_is_a_plain_loop_bit_for_bit(kind: Kind) -> None:
    torch.manual_seed(0)
    module = kind.model()
    before = copy.deepcopy(module.state_dict())
    task = potluck.Task(copy.deepcopy(module), kind.data(), kind.loss)
    job = _job("sync-sgd", server={"kind": "adamw", "lr": 0.01, "weight_decay": 0.1})
    trained = _trained(job, task)
    plain_loop(module, task, kind.loss, steps=None)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, trained[name]), name
    assert any(not torch.equal(start, trained[name]) for name, start in before.items())


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_local_steps_are_a_plain_loop_but_for_the_rounding_of_differences(kind: Kind) -> None:
    """A turn sends what it changed: w₀ − (w₀ − w) is w up to one rounding."""
    torch.manual_seed(0)
    module = kind.model()
    task = potluck.Task(copy.deepcopy(module), kind.data(), kind.loss)
    local = {"kind": "adamw", "lr": 0.01, "weight_decay": 0.1, "steps": 3, "state": "keep"}
    trained = _trained(_job("fedavg", local=local), task)
    plain_loop(module, task, kind.loss, steps=3)
    for name, tensor in module.state_dict().items():
        assert torch.allclose(tensor, trained[name], rtol=1e-5, atol=1e-6), name


def plain_loop(module: nn.Module, task: potluck.Task, loss: Callable[[Any, Any], Tensor], steps: int | None) -> None:
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01, weight_decay=0.1)
    module.train()
    for inputs, targets in _batches(task.data.train, steps):
        optimizer.zero_grad()
        loss(call_model(module, inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@pytest.mark.parametrize("kind", [KINDS["text"], KINDS["dict inputs and outputs"]], ids=["text", "dict inputs"])
def test_a_pipeline_is_the_whole_model(kind: Kind) -> None:
    """Bit for bit with whole batches; micro-batches of one sample are multiplied by other kernels in a stage."""

    def train(devices: int) -> dict[str, Tensor]:
        torch.manual_seed(0)
        job = make(
            {
                "task": "own", "recipe": "gpipe", "stop": {"rounds": ROUNDS},
                "fleet": {"devices": [{"preset": "pi4", "count": devices, "memory": "1 GB"}]},
                "pipeline": {
                    "batch": BATCH, "optimizer": {"kind": "adamw", "lr": 0.01}, "schedule": {"micro_batches": 1},
                },
            }
        )  # fmt: skip
        result = potluck.simulate(job, task=potluck.Task(kind.model(), kind.data(), kind.loss))
        assert result.module is not None
        return result.module.state_dict()

    whole, staged = train(1), train(3)
    for name, tensor in whole.items():
        assert torch.equal(tensor, staged[name]), name


def _trained(job: potluck.Job, task: potluck.Task) -> dict[str, Tensor]:
    result = potluck.simulate(job, task=task)
    assert result.module is not None
    return result.module.state_dict()


def _job(recipe: str, **rounds: Any) -> potluck.Job:
    return make(
        {
            "task": "own",
            "recipe": recipe,
            "fleet": {"devices": [{"preset": "pi4"}]},
            "stop": {"rounds": ROUNDS},
            "rounds": {"batching": {"size": BATCH}, **rounds},
        }
    )  # fmt: skip


def _batches(train: Any, steps: int | None) -> Iterator[tuple[Any, Any]]:
    """The batches of the device's turns, with the generators that the run gives it."""

    def rng(*name: Any) -> np.random.Generator:
        return seeds.child_generator(0, "pi4", *name)

    shard = np.arange(len(train))
    for count in range(ROUNDS):
        transforms = rng("train", count)
        for indices in FixedBatching(size=BATCH).choose_batches(shard, count, steps, rng):
            yield train.batch(indices, transforms if train.needs_rng else None)

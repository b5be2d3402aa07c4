"""Only what is trained travels: LoRA adapters, frozen trunks and constant buffers in whole runs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import potluck
from potluck import seeds
from potluck.data import Dataset, from_tensors
from potluck.errors import RunError, UserError
from potluck.job import make
from potluck.journal import Span, read_journal
from potluck.loops.parts.batching import FixedBatching
from tests.simulation.runs import journal

ROUNDS, RANK, HEADER = 4, 2, 64


pytestmark = pytest.mark.usefixtures("one_thread")


def make_job(devices: int = 2, **settings: Any) -> potluck.Job:
    tables: dict[str, Any] = {
        "task": "tests.simulation.test_frozen_training:unused",
        "recipe": "sync-sgd",
        "fleet": {"devices": [{"preset": "pi4", "name": "pi", "count": devices}]},
        "stop": {"rounds": ROUNDS},
        "checkpoint": 1,
        **({} if "pipeline" in settings else {"rounds": {"batching": {"size": 8}}}),
    }
    return make({**tables, **settings})


def pulls(folder: Path, frozen: bool) -> list[Span]:
    spans = [record for record in read_journal(folder / "journal.jsonl") if isinstance(record, Span)]
    return [span for span in spans if span.name == "pull" and ("frozen" in span.fields) == frozen]


# --- LoRA through peft, with nothing of ours between ----------------------------------------------------------------


def peft_llama() -> nn.Module:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, use_cache=False
    )
    lora = LoraConfig(r=RANK, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    return get_peft_model(LlamaForCausalLM(config), lora)  # type: ignore[no-any-return]


def next_token_loss(outputs: Any, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs["logits"][:, :-1].flatten(0, 1), targets[:, 1:].flatten())


def text() -> Dataset:
    tokens = torch.randint(0, 32, (40, 6), generator=torch.Generator().manual_seed(1))
    held_out = tokens[:8]
    return from_tensors({"input_ids": tokens}, tokens, {"input_ids": held_out}, held_out)


def adapter_bytes(module: nn.Module) -> int:
    return sum(param.nbytes for param in module.parameters() if param.requires_grad)


def test_lora_on_one_device_is_a_plain_pytorch_loop_and_sends_only_the_adapters(tmp_path: Path) -> None:
    module, data = peft_llama(), text()
    expected, adapters = copy.deepcopy(module), adapter_bytes(module)
    trained = [param for param in expected.parameters() if param.requires_grad]
    optimizer, shard = torch.optim.SGD(trained, lr=0.1, momentum=0.9), np.arange(len(data.train))
    for count in range(ROUNDS):
        (chosen,) = FixedBatching(size=8).choose_batches(
            shard, count, None, lambda *name: seeds.child_generator(0, "pi", *name)
        )
        inputs, targets = data.train.batch(chosen)
        optimizer.zero_grad()
        next_token_loss(expected.train()(**inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    result = potluck.simulate(make_job(1), task=potluck.Task(lambda: module, data, next_token_loss), folder=tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensor, saved[name]), name
    assert result.summary["bytes"] == 2 * ROUNDS * (adapters + HEADER)
    assert HEADER < 0.05 * adapters < 0.05 * 0.1 * sum(param.nbytes for param in module.parameters())
    assert [span.fields["bytes"] for span in pulls(tmp_path, frozen=False)] == [adapters] * ROUNDS


def test_a_pipeline_of_lora_layers_trains_as_the_whole_model_does() -> None:
    module, data = peft_llama(), text()
    pipeline = {"batch": 8, "schedule": {"kind": "gpipe", "micro_batches": 1}, "partition": {"kind": "equal"}}
    modules = []
    for devices in (1, 3):
        task = potluck.Task(copy.deepcopy(module), data, next_token_loss)
        job = make_job(devices, recipe="gpipe", pipeline=pipeline)
        result = potluck.simulate(job, task=task)
        assert result.status == "done", result.reason
        assert result.module is not None
        modules.append(result.module)
    whole, stages = (dict(each.named_parameters()) for each in modules)
    for name, param in stages.items():
        torch.testing.assert_close(param, whole[name], rtol=1e-5, atol=1e-7)
        assert param.requires_grad != torch.equal(param, dict(module.named_parameters())[name]), name


# --- frozen trunks ---------------------------------------------------------------------------------------------------


class Trunk(nn.Module):
    """A frozen trunk with a mask, and a head that is trained."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 8)).to(dtype).requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((8,), -torch.inf))
        self.mask: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.trunk(inputs).float()
        return self.head(self.norm(hidden.masked_fill(self.mask.isfinite(), 0.0)))  # type: ignore[no-any-return]


FROZEN_BYTES = 4 * (6 * 20 + 20 + 20 * 8 + 8 + 8)
TRAINED_BYTES = 4 * (8 * 3 + 3 + 2 * 8 + 2 * 8 + 1)


def points() -> Dataset:
    generator = torch.Generator().manual_seed(3)
    inputs, labels = torch.randn(60, 6, generator=generator), torch.randint(0, 3, (60,), generator=generator)
    return from_tensors(inputs, labels, inputs[:20], labels[:20])


def simulate(folder: Path | None, model: nn.Module | Callable[[], nn.Module], **settings: Any) -> potluck.Result:
    result = potluck.simulate(make_job(**settings), task=potluck.Task(model, points()), folder=folder, threads=0)
    assert result.status == "done", result.reason
    return result


def test_devices_that_build_the_trunk_themselves_receive_none_of_it(tmp_path: Path) -> None:
    result = simulate(tmp_path, Trunk)
    assert not pulls(tmp_path, frozen=True)
    assert result.summary["bytes"] == 2 * 2 * ROUNDS * (TRAINED_BYTES + HEADER)


@pytest.mark.parametrize("timing_only", [False, True])
def test_the_trunk_of_a_given_module_is_sent_once_to_each_device(tmp_path: Path, timing_only: bool) -> None:
    result = simulate(tmp_path, Trunk(), timing_only=timing_only)
    assert [span.fields["bytes"] for span in pulls(tmp_path, frozen=True)] == [FROZEN_BYTES] * 2
    every_round = 2 * 2 * ROUNDS * (TRAINED_BYTES + HEADER)
    assert result.summary["bytes"] == every_round + 2 * (FROZEN_BYTES + HEADER)


def test_weights_of_start_are_the_coordinators_own_and_are_sent(tmp_path: Path) -> None:
    simulate(tmp_path / "first", Trunk)
    start = str(tmp_path / "first")
    result = simulate(tmp_path / "second", Trunk, seed=5, start=start)
    assert len(pulls(tmp_path / "second", frozen=True)) == 2
    trained = load_file(tmp_path / "first" / "model.safetensors")
    assert result.module is not None
    assert torch.equal(result.module.state_dict()["trunk.0.weight"], trained["trunk.0.weight"])


def test_a_device_that_starts_again_fetches_again_and_others_do_not(tmp_path: Path) -> None:
    fault = {"kind": "crash", "device": "pi-0", "at": "300 ms", "restart": "100 ms"}
    fleet = {"devices": [{"preset": "pi4", "name": "pi", "count": 2}], "faults": [fault]}
    simulate(tmp_path, Trunk(), fleet=fleet, stop={"rounds": 40})
    assert sorted(span.node for span in pulls(tmp_path, frozen=True)) == ["pi-0", "pi-0", "pi-1"]


def test_a_slow_first_transfer_survives_being_released_from_its_turn(tmp_path: Path) -> None:
    thin = {"preset": "pi4", "name": "thin", "link": {"up": "1 Mbit/s", "down": "100 kbit/s", "latency": "1 ms"}}
    fleet = {"devices": [{"preset": "pi4", "name": "pi", "count": 2}, thin]}
    quorum = {"batching": {"size": 8}, "barrier": {"kind": "quorum", "share": 0.5, "tolerance": 0.0}}
    result = simulate(tmp_path, Trunk(), fleet=fleet, rounds=quorum, stop={"rounds": 60})
    assert result.summary["late"] > 1
    assert [span.node for span in pulls(tmp_path, frozen=True)].count("thin") == 1
    assert any(span.node == "thin" for span in pulls(tmp_path, frozen=False))


def test_a_pipeline_stage_fetches_the_trunk_of_its_own_layers_only(tmp_path: Path) -> None:
    pipeline = {"batch": 8, "partition": {"kind": "cuts", "after": [0]}}
    simulate(tmp_path, Trunk(), recipe="pipedream", pipeline=pipeline)
    sent = {span.node: span.fields for span in pulls(tmp_path, frozen=True)}
    assert {node: fields["frozen"] for node, fields in sent.items()} == {"pi-0": [0, 0], "pi-1": [1, 1]}
    assert sum(fields["bytes"] for fields in sent.values()) == FROZEN_BYTES


class Tied(nn.Module):
    """A frozen embedding that is the last layer, too, with something trained between."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8).requires_grad_(False)
        self.middle = nn.Linear(8, 8)
        self.last = nn.Linear(8, 12, bias=False)
        self.last.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(self.embed(tokens)))).mean(1)  # type: ignore[no-any-return]


def test_a_frozen_weight_that_two_stages_use_is_held_by_both_and_is_no_activation(tmp_path: Path) -> None:
    tokens = torch.randint(0, 12, (40, 5), generator=torch.Generator().manual_seed(2))
    data = from_tensors(tokens, tokens[:, 0], tokens[:10], tokens[:10, 0])
    torch.manual_seed(1)
    module, weights = Tied(), []
    for after in ([], [1]):
        schedule = {"kind": "gpipe", "micro_batches": 1}
        pipeline = {"batch": 8, "schedule": schedule, "partition": {"kind": "cuts", "after": after}}
        job = make_job(2, recipe="gpipe", pipeline=pipeline)
        folder = tmp_path / str(len(after))
        result = potluck.simulate(job, task=potluck.Task(copy.deepcopy(module), data), folder=folder, threads=0)
        assert result.status == "done", result.reason
        assert result.module is not None
        weights.append(result.module.state_dict())
    fetched = {span.node: span.fields["frozen"] for span in pulls(tmp_path / "1", frozen=True)}
    assert fetched == {"pi-0": [0, 0], "pi-1": [0, 0]}
    assert torch.equal(weights[0]["middle.weight"], weights[1]["middle.weight"])
    assert not torch.equal(weights[0]["middle.weight"], module.middle.weight)
    sent = [
        record.fields["bytes"]
        for record in read_journal(tmp_path / "1/journal.jsonl")
        if isinstance(record, Span) and record.name == "send" and record.node == "pi-0"
    ]
    assert max(sent) == 8 * 5 * 8 * 4 + HEADER, "the weight itself was sent"


@pytest.mark.parametrize("recipe", ["fedavg", "pipedream"])
def test_a_resumed_run_continues_and_another_trunk_is_refused(tmp_path: Path, recipe: str) -> None:
    own: dict[str, Any] = {"pipeline": {"batch": 8}} if recipe == "pipedream" else {}
    torch.manual_seed(8)
    trunk = Trunk()
    settings: dict[str, Any] = {"recipe": recipe, "evaluate": 1, **own}
    simulate(tmp_path / "whole", copy.deepcopy(trunk), **settings)
    task = potluck.Task(copy.deepcopy(trunk), points())
    job = make_job(**settings)
    rounds_seen: list[int] = []
    interrupted = potluck.simulate(
        job,
        task=task,
        folder=tmp_path / "half",
        watch=lambda store, now: rounds_seen.append(store.progress.round),
        stopping=lambda: len(rounds_seen) >= 2,
        threads=0,
    )
    assert interrupted.status == "interrupted"
    with pytest.raises(RunError, match=r"began with another model: frozen values of"):
        potluck.resume(tmp_path / "half", task=potluck.Task(Trunk(), points()))
    potluck.resume(tmp_path / "half", task=potluck.Task(copy.deepcopy(trunk), points()), threads=0)
    if recipe == "fedavg":
        assert journal(tmp_path / "half") == journal(tmp_path / "whole")
    ended, never = (load_file(tmp_path / name / "model.safetensors") for name in ("half", "whole"))
    assert all(torch.equal(ended[name], never[name]) for name in never)


@pytest.mark.parametrize("recipe", ["fedavg", "dynacomm", "pipedream"])
def test_a_trunk_of_another_dtype_trains(recipe: str) -> None:
    pipeline = {"batch": 8, "partition": {"kind": "cuts", "after": [0]}}
    own: dict[str, Any] = {"pipeline": pipeline} if recipe == "pipedream" else {}
    result = simulate(None, lambda: Trunk(torch.bfloat16), recipe=recipe, **own)
    assert result.module is not None
    assert result.module.state_dict()["trunk.0.weight"].dtype == torch.bfloat16


def test_width_methods_slice_frozen_weights_with_the_rest() -> None:
    def model() -> nn.Module:
        net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))
        net[0].requires_grad_(False)
        return net

    simulate(None, model, recipe="heterofl", rounds={"batching": {"size": 8}})


def test_the_memory_of_a_stage_includes_its_frozen_weights() -> None:
    small = {"devices": [{"preset": "pi4", "name": "pi", "memory": "1500 B"}]}
    with pytest.raises(UserError, match="short of memory"):
        simulate(None, Trunk, recipe="pipedream", pipeline={"batch": 2}, fleet=small)
    enough = {"devices": [{"preset": "pi4", "name": "pi", "memory": "64 kB"}]}
    simulate(None, Trunk, recipe="pipedream", pipeline={"batch": 2}, fleet=enough)

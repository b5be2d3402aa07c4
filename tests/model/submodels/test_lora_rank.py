"""Ranks of LoRA adapters as sub-models: what is trained, what is not changed, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import potluck
from potluck.data import Dataset, from_tensors
from potluck.errors import SettingError
from potluck.job import make
from potluck.model.layer_chain import trace_layers
from potluck.model.model_state import WeightLayout
from potluck.model.submodels.lora_rank import LoraRankExtractor, find_rank_axes

FULL = 4


class Adapted(nn.Module):
    """A frozen linear layer with a LoRA adapter, named as peft names it."""

    def __init__(self, inputs: int, outputs: int, rank: int = FULL) -> None:
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, outputs, bias=False)})
        self.scaling = 8 / rank

    def forward(self, inputs: Tensor) -> Tensor:
        adapted = self.lora_B["default"](self.lora_A["default"](inputs))
        return self.base_layer(inputs) + adapted * self.scaling  # type: ignore[no-any-return]


def adapted_net() -> nn.Module:
    return nn.Sequential(Adapted(6, 8), nn.ReLU(), Adapted(8, 8, rank=2), nn.ReLU(), nn.Linear(8, 3))


def points() -> Dataset:
    generator = torch.Generator().manual_seed(3)
    inputs, labels = torch.randn(60, 6, generator=generator), torch.randint(0, 3, (60,), generator=generator)
    return from_tensors(inputs, labels, inputs[:20], labels[:20])


def simulate(model: nn.Module, flops: list[str], **settings: Any) -> dict[str, Tensor]:
    devices = [{"name": f"d{index}", "flops": speed} for index, speed in enumerate(flops)]
    tables = {"task": "x", "fleet": {"devices": devices}, "stop": {"rounds": 3}, **settings}
    result = potluck.simulate(make(tables), task=potluck.Task(copy.deepcopy(model), points()), threads=0)
    assert result.status == "done", result.reason
    assert result.module is not None
    return dict(result.module.state_dict())


def extractor_of(model: nn.Module, fraction: float) -> tuple[LoraRankExtractor, WeightLayout]:
    chain = trace_layers(model, (6,))
    layout = WeightLayout.of_chain(chain)
    return LoraRankExtractor(chain, layout, lambda device: fraction), layout


class Turn:
    device, round, invited = "pi", 0, 0


def test_pairs_are_found_by_name_and_shape_in_peft_models_too() -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=4, n_embd=4, n_layer=1, n_head=1))
    lora = LoraConfig(r=3, target_modules=["c_attn", "wte"], fan_in_fan_out=True)
    adapted = get_peft_model(model, lora)
    params = [name for name, param in adapted.named_parameters() if param.requires_grad]
    axes = find_rank_axes(WeightLayout.of_module(adapted, [(params, [])], frozen=False))
    assert axes.keys() == set(params)
    assert len(axes) == 4
    assert all(axis.rank == 3 for axis in axes.values())


def test_fewer_ranks_are_the_model_with_the_other_ranks_at_zero() -> None:
    torch.manual_seed(0)
    model = adapted_net()
    extractor, layout = extractor_of(model, 0.5)
    spec = extractor.select_submodel(Turn())
    assert spec is not None
    narrow, zeroed = extractor.build_network(Turn(), spec), copy.deepcopy(model)
    with torch.no_grad():
        for name, axis in find_rank_axes(layout).items():
            weight = dict(zeroed.named_parameters())[name]
            weight.narrow(axis.dim, axis.rank // 2, axis.rank - axis.rank // 2).zero_()
    inputs = torch.randn(5, 6)
    torch.testing.assert_close(narrow(inputs), zeroed(inputs))
    assert narrow[0].base_layer.weight is model[0].base_layer.weight  # type: ignore[index]
    assert narrow[0].scaling == 8 / FULL  # type: ignore[index]


def test_costs_and_bytes_follow_the_ranks() -> None:
    model = adapted_net()
    extractor, layout = extractor_of(model, 0.5)
    spec = extractor.select_submodel(Turn())
    assert spec is not None
    assert spec.layout.layer_count == layout.layer_count
    assert len(spec.params) == 2 * (6 + 8) + 1 * (8 + 8) + 8 * 3 + 3
    assert sum(spec.macs) == 6 * 8 + 2 * (6 + 8) + 8 * 8 + 1 * (8 + 8) + 8 * 3
    assert extractor.cost_fraction(Turn()) == sum(spec.macs) / (6 * 8 + 4 * (6 + 8) + 8 * 8 + 2 * (8 + 8) + 8 * 3)


def test_the_full_rank_everywhere_is_plain_fedavg_bit_for_bit() -> None:
    torch.manual_seed(0)
    model, local = adapted_net(), {"local": {"kind": "sgd", "lr": 0.05, "epochs": 1}}
    plain = simulate(model, ["1 GFLOP/s", "1 GFLOP/s"], recipe="fedavg", rounds=local)
    ranks = simulate(model, ["1 GFLOP/s", "1 GFLOP/s"], recipe="lora-rank", rounds=local)
    assert all(torch.equal(plain[name], ranks[name]) for name in plain)
    assert not torch.equal(plain["0.lora_A.default.weight"], model.state_dict()["0.lora_A.default.weight"])


def test_devices_that_train_leading_ranks_never_change_the_others() -> None:
    torch.manual_seed(0)
    model = adapted_net()
    settings = {"recipe": "lora-rank", "rounds": {"submodel": {"kind": "lora-rank", "levels": [0.5]}}}
    trained, before = simulate(model, ["1 GFLOP/s", "2 GFLOP/s"], **settings), model.state_dict()
    for name, axis in (("0.lora_A.default.weight", 0), ("0.lora_B.default.weight", 1)):
        leading, others = (before[name].narrow(axis, start, 2) for start in (0, 2))
        assert torch.equal(trained[name].narrow(axis, 2, 2), others)
        assert not torch.equal(trained[name].narrow(axis, 0, 2), leading)


def test_slow_devices_train_fewer_ranks_and_each_entry_is_averaged_over_those_who_trained_it() -> None:
    torch.manual_seed(0)
    model, lora = adapted_net(), "0.lora_A.default.weight"
    once = {"rounds": {"local": {"kind": "sgd", "lr": 0.1, "epochs": 1}}, "stop": {"rounds": 1}, "split": "everything"}
    mixed = simulate(model, ["1 GFLOP/s", "250 MFLOP/s"], recipe="lora-rank", **once)
    alone = simulate(model, ["1 GFLOP/s"], recipe="lora-rank", **once)
    assert torch.equal(mixed[lora][1:], alone[lora][1:])  # only the fast device trained them
    assert not torch.equal(mixed[lora][1:], model.state_dict()[lora][1:])
    assert not torch.equal(mixed[lora][:1], alone[lora][:1])


@pytest.mark.parametrize("key", ["scaled", "static"])
def test_settings_without_a_meaning_are_refused(key: str) -> None:
    with pytest.raises(
        SettingError, match=rf"rounds\.submodel\.{key}: has no effect on ranks of LoRA adapters; remove it"
    ):
        make(
            {
                "task": "x:y", "recipe": "lora-rank", "fleet": "pi-shelf", "stop": {"rounds": 1},
                "rounds": {"submodel": {key: True}},
            }
        )  # fmt: skip


def test_a_model_without_adapters_is_refused_in_one_line() -> None:
    with pytest.raises(SettingError, match=r"rounds.submodel.*'lora-rank' needs a model with LoRA adapters.*peft"):
        simulate(nn.Sequential(nn.Linear(6, 3)), ["1 GFLOP/s"], recipe="lora-rank")

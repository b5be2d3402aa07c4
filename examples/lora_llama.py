"""LoRA adapters of a small Llama: only they travel. Needs `pip install 'potluck[hf]'` and downloads nothing.

    python examples/lora_llama.py        # fewer rounds: python examples/lora_llama.py 5

A laptop trains the whole model on one language, then four devices adapt it to another. Both are generated, so the
lowest possible loss is known. For weights that you have, use `from_pretrained` in place of the first run. Live on this
machine: `potluck.lab(job, task=task, folder="runs/live")`. On several: `potluck.serve` on one, and on each device
`potluck.join(address, token, name=…, task=task)`, which fetches once what is frozen and differs from its own.
"""

import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import potluck
from potluck.data import load, parse

LANGUAGES = "generated-language:order=1,vocabulary=16,block=32,train=400,test=100,seed="
config = LlamaConfig(vocab_size=16, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)


def build_llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(config)


def make_job(lr: float, rounds: int, split: str, *devices: dict) -> dict:
    local = {"kind": "adamw", "lr": lr}
    return {"recipe": "fedavg", "task": "own", "fleet": {"devices": devices}, "split": split, "evaluate": 5,
            "rounds": {"batching": {"size": 16}, "local": local}, "stop": {"rounds": rounds}}  # fmt: skip


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if sys.argv[1:] else 20
    before = potluck.Task(build_llama, load(parse(f"{LANGUAGES}1")))
    base = potluck.simulate(make_job(0.005, rounds // 2, "iid", {"preset": "laptop"}), task=before).module

    torch.manual_seed(0)  # of the adapters' first values
    language = parse(f"{LANGUAGES}2")
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    task = potluck.Task(model, load(language), metrics=["perplexity"])
    job = make_job(0.01, rounds, "owner", {"preset": "laptop"}, {"preset": "pi4", "count": 3})
    result = potluck.simulate(job, task=task)
    print(result.metrics)
    losses = [loss for loss in result.metrics["test_loss"] if loss is not None]
    print(f"test loss {losses[0]:.3f} → {losses[-1]:.3f}; no model has less than {language.ideal_loss():.3f}")
    sent = (result.metrics["bytes"][-1] - result.metrics["bytes"][-2]) / 4 / 2
    trained, whole = (4 * count for count in model.get_nb_trainable_parameters())
    print(f"a device gets and sends {sent:,.0f} B a round; the adapters are {trained:,} B, the model {whole:,} B")

"""The workloads: a GPT, a classifier of texts, a segmentation network, and LoRA adapters; and how each is trained.

All methods of a workload see equally many samples. A fleet that averages models divides them among its eight devices; a
fleet that averages gradients, and a pipeline, divide every batch of the central loop among four.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.tasks.plain_training import PlainSettings, train_plain
from benchmarks.tasks.shape_segmentation import ShapeUnet, generate_shapes
from potluck.job import Job, make
from potluck.settings import decode_settings
from potluck.task import Task, TaskSettings, build_task

__all__ = [
    "CENTRAL",
    "METHODS",
    "TUNED",
    "WORKLOADS",
    "TaskWorkload",
    "build_workload_task",
    "method_job",
    "single_device_job",
]

CENTRAL, TUNED = "central", "central, rate tuned"  # the latter where a published rate was not tuned as ours are
METHODS = ("fedavg", "dynacomm", "ftpipehd", "distreal")
LORA_METHODS = (*METHODS, "lora-rank")

_AVERAGING_FLEET = ((3, 1.0), (3, 0.66), (2, 0.33))  # devices, and their speed
_SHARING_FLEET = ((2, 1.0), (1, 0.66), (1, 0.33))
_FLOPS = 20e9
_FLOOR = 0.1  # of the learning rate, at the end of its cosine
_WARM_UP = 0.05  # of the rounds


class TaskWorkload(NamedTuple):
    """A model with its data, and the settings of its training."""

    title: str
    metric: str  # "loss", or one of the task's
    task: Mapping[str, Any]
    batch: int
    steps: int  # of the central loop
    quick_steps: int
    local_steps: int  # in a turn of a device that sends a model
    common_rate: float  # from which learning rates are tuned
    rates: Mapping[str, float]  # learning rates, by method
    optimizer: Mapping[str, float] = {}  # other settings of AdamW
    clip_norm: float | None = None
    methods: tuple[str, ...] = METHODS
    seeds: int = 3

    def step_count(self, quick: bool) -> int:
        return self.quick_steps if quick else self.steps

    def plain_settings(self, steps: int) -> PlainSettings:
        betas = (self.optimizer.get("beta1", 0.9), self.optimizer.get("beta2", 0.999))
        decay = self.optimizer.get("weight_decay", 0.01)
        warm_up = round(_WARM_UP * steps)
        rate = self.rates[CENTRAL]
        return PlainSettings(rate, betas, decay, self.clip_norm, self.batch, steps, warm_up, _FLOOR)


_DISTILBERT = {
    "model_type": "distilbert", "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128,
    "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0, "max_position_embeddings": 32,
}  # fmt: skip
_LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "tie_word_embeddings": False,
}  # fmt: skip
_CAUSAL = {"kind": "transformers", "auto": "AutoModelForCausalLM", "config": _LLAMA}
_PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_LORA = {"rank": 8, "alpha": 16, "targets": _PROJECTIONS}
_LANGUAGE = {"kind": "generated-language", "train": 4000, "test": 800, "block": 32}
_PRETRAINING = PlainSettings(3e-3, (0.9, 0.999), 0.01, None, 16, 400, 20, _FLOOR)

WORKLOADS: Mapping[str, TaskWorkload] = {
    "gpt": TaskWorkload(
        "GPT, tiny Shakespeare", "loss",
        {"model": "gpt", "data": {"kind": "tiny-shakespeare", "owners": "none", "stride": 1}},
        batch=12, steps=2000, quick_steps=80, local_steps=10, common_rate=1e-3,
        rates={CENTRAL: 1e-3, TUNED: 3e-3, "fedavg": 1e-3, "dynacomm": 3e-3, "ftpipehd": 1e-3 / 3, "distreal": 3e-3},
        optimizer={"beta2": 0.99, "weight_decay": 0.1}, clip_norm=1.0, methods=(TUNED, *METHODS), seeds=2,
    ),
    "classifier": TaskWorkload(
        "DistilBERT-like classifier, generated topics", "accuracy",
        {
            "model": {"kind": "transformers", "auto": "AutoModelForSequenceClassification", "config": _DISTILBERT},
            "data": {"kind": "generated-topics", "train": 4000, "test": 1000}, "metrics": ["accuracy"],
        },
        batch=32, steps=800, quick_steps=80, local_steps=5, common_rate=1e-3,
        rates={CENTRAL: 3e-3, "fedavg": 1e-2, "dynacomm": 1e-3, "ftpipehd": 1e-3, "distreal": 1e-2},
    ),
    "segmentation": TaskWorkload(
        "U-Net, generated shapes", "mean-iou", {"metrics": ["mean-iou"]},
        batch=16, steps=640, quick_steps=80, local_steps=5, common_rate=3e-3,
        rates=dict.fromkeys((CENTRAL, *METHODS), 9e-3),
    ),
    "lora": TaskWorkload(
        "LoRA of a Llama, generated language", "loss",
        {"model": {**_CAUSAL, "lora": _LORA}, "data": {**_LANGUAGE, "seed": 1}},
        batch=16, steps=800, quick_steps=80, local_steps=5, common_rate=3e-3,
        rates={**dict.fromkeys((CENTRAL, *LORA_METHODS), 9e-3), "fedavg": 3e-2, "distreal": 3e-2},
        methods=LORA_METHODS,
    ),
}  # fmt: skip


# --- tasks -----------------------------------------------------------------------------------------------------------


def build_workload_task(name: str, data: Path | None) -> Task:
    """The task of a workload; LoRA starts from a model that was trained on another language."""
    if name == "segmentation":
        metrics = WORKLOADS[name].task["metrics"]
        return Task(model=ShapeUnet, data=generate_shapes(2000, 400), metrics=metrics, name=name)
    task = build_task(decode_settings(dict(WORKLOADS[name].task), TaskSettings), data)
    return task if name != "lora" else _load_pretrained(task)


def _load_pretrained(task: Task) -> Task:
    build, pretrained = task.model, _pretrained_weights()

    def build_adapted() -> torch.nn.Module:
        module = build()
        named = {key.replace(".base_layer", "").removeprefix("base_model.model."): key for key in module.state_dict()}
        state = {key: pretrained[name] for name, key in named.items() if name in pretrained}
        assert len(state) == len(pretrained), "every pre-trained tensor has its place"
        module.load_state_dict(state, strict=False)
        return module

    return Task(build_adapted, task.data, task.loss, task.metrics, task.name)


@lru_cache(maxsize=1)
def _pretrained_weights() -> Mapping[str, torch.Tensor]:
    task = build_task(decode_settings({"model": _CAUSAL, "data": _LANGUAGE}, TaskSettings), None)
    return dict(train_plain(task, _PRETRAINING, seed=0).state_dict())


# --- jobs ------------------------------------------------------------------------------------------------------------


def method_job(workload: TaskWorkload, method: str, steps: int, seed: int, rate: float | None = None) -> Job:
    """The job in which a method sees the samples of that many central steps."""
    lr = workload.rates[method] if rate is None else rate
    adamw = {"kind": "adamw", "lr": lr, **workload.optimizer}
    if method == "ftpipehd":
        how = {"pipeline": {"batch": workload.batch, "optimizer": adamw, "lr_schedule": _cosine(steps)}}
        rounds, fleet = steps, _SHARING_FLEET
    elif method == "dynacomm":
        batching = {"kind": "fixed", "size": workload.batch // 4}
        how = {"rounds": {"batching": batching, "server": adamw, "schedule": _cosine(steps)}}
        rounds, fleet = steps, _SHARING_FLEET
    else:
        rounds, fleet = steps // (8 * workload.local_steps), _AVERAGING_FLEET
        state = "reset" if method == "lora-rank" else "keep"
        local = {**adamw, "steps": workload.local_steps, "state": state, "clip_norm": workload.clip_norm}
        batching = {"kind": "fixed", "size": workload.batch}
        how = {"rounds": {"batching": batching, "local": local, "local_schedule": _cosine(rounds)}}
    return _make_job(method, how, fleet, rounds, seed)


def single_device_job(workload: TaskWorkload, steps: int, rounds: int, seed: int) -> Job:
    """One device that does what the plain loop does, `steps` in each round."""
    adamw = {"kind": "adamw", "lr": workload.rates[CENTRAL], **workload.optimizer}
    local = {**adamw, "steps": steps, "state": "keep", "clip_norm": workload.clip_norm}
    how = {"rounds": {"batching": {"kind": "fixed", "size": workload.batch}, "local": local}}
    return _make_job("central", how, ((1, 1.0),), rounds, seed)


def _make_job(recipe: str, how: Mapping[str, Any], fleet: Any, rounds: int, seed: int) -> Job:
    devices = [
        {"name": f"group{index}", "count": count, "flops": speed * _FLOPS, "link": "wifi"}
        for index, (count, speed) in enumerate(fleet)
    ]
    split = {} if recipe == "central" or "pipeline" in how else {"split": "iid"}
    return make(
        {
            "task": "benchmark", "recipe": recipe, **how, **split, "fleet": {"devices": devices},
            "stop": {"rounds": rounds}, "evaluate": 0, "checkpoint": 0, "seed": seed,
        }
    )  # fmt: skip


def _cosine(rounds: int) -> dict[str, Any]:
    return {"kind": "cosine", "rounds": rounds, "warmup": round(_WARM_UP * rounds), "floor": _FLOOR}

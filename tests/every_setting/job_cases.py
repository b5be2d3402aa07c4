"""Cases for the top level of a job, its task, its stopping rules and its split."""

from __future__ import annotations

from typing import Any

from tests.every_setting.setting_case import Refused, SettingCase, cases
from tests.every_setting.small_jobs import CONV, MLP, PICTURES, Tables, pipeline, rounds

__all__ = ["CASES"]

_IGNORED = "has no effect"
_DIGITS: Tables = {"kind": "drawn-digits", "train": 64, "test": 32}
_FAST = {"devices": [{"name": "pi", "flops": "1 GFLOP/s", "count": 2}]}
_LONG: Tables = {"stop": {"rounds": 12}}

_JOB: list[SettingCase] = [
    *cases(
        rounds("fedavg", job=_LONG), "",
        task=CONV, fleet=_FAST, stop={"rounds": 2}, recipe="fedadam", rounds={"batching": {"size": 8}},
        pipeline=Refused({"batch": 8}, "rounds: has no effect in a pipeline"), split="dirichlet",
        stream={"rate": {"kind": "constant"}}, seed=4, name="mine", evaluate=3, checkpoint=3, best="accuracy",
        timing_only=True, samples=Refused(40, _IGNORED),
    ),
    *cases(rounds("fedavg"), "", start=Refused("nowhere.safetensors", "nowhere.safetensors")),
    *cases(rounds("fedavg", job={"timing_only": True}), "", samples=40),
    *cases(pipeline("ftpipehd"), "", seed=4, evaluate=2, checkpoint=2, name="mine", best="loss", timing_only=True),
]  # fmt: skip

_TASK = [
    *cases(rounds("fedavg", job={"task": {"model": "mlp", "data": PICTURES}}), "task", model="cnn"),
    *cases(rounds("fedavg"), "task", options={"hidden": [6]}, data={**MLP["data"], "noise": 2.0},
           loss="tests.every_setting.own_code:scaled_loss", metrics=["f1"], costs="resnet20"),
    *cases(rounds("fedavg", job={"task": CONV}), "task", norm="group"),
    *cases(rounds("fedavg", job={"task": {**MLP, "options": {}, "data": _DIGITS}}), "task", augment=True),
    *cases(rounds("fedavg"), "task", norm=Refused("group", "no batch norm")),
]  # fmt: skip

_LEARNING: Tables = {"kind": "sgd", "lr": 0.3, "momentum": 0.5}


def _stopping(**stop: Any) -> Tables:
    task = {**MLP, "metrics": ["f1", "accuracy"]}
    return rounds("fedavg", job={"task": task, "stop": {"rounds": 20, **stop}}, local=_LEARNING)


_STOP = [
    *cases(_stopping(), "stop", rounds=4, time="1 s", bytes="20 kB", accuracy=0.3, metrics={"f1": 0.2}),
]


def _split(kind: str, job: Tables | None = None, **settings: Any) -> Tables:
    return rounds("fedavg", job={"split": {"kind": kind, **settings}, **(job or {})})


_SPLIT = [
    *cases(_split("dirichlet", alpha=0.3), "split", alpha=5.0, min_samples=20),
    *cases(_split("shards"), "split", per_device=3),
    *cases(_split("classes"), "split", per_device=3),
    *cases(_split("power-law"), "split", exponent=0.5),
    *cases(_split("class-groups"), "split", groups=4, rest=0.2, held={"fast": [0], "slow": [1]}),
]

CASES = [*_JOB, *_TASK, *_STOP, *_SPLIT]

"""Cases for `[rounds]` and the parts of a round, without sub-models."""

from __future__ import annotations

from tests.every_setting.part_cases import optimizer_cases, schedule_cases
from tests.every_setting.setting_case import Refused, SettingCase, cases, only_long
from tests.every_setting.small_jobs import UNEVEN, Tables, breaking, rounds, stream

__all__ = ["CASES"]

_SKEWED: Tables = {"split": {"kind": "classes", "per_device": 2}}
_UNEQUAL: Tables = {"split": {"kind": "power-law"}}
_LOSING = breaking(UNEVEN, {"kind": "lose", "every": "500 ms", "share": 0.5, "lasting": "500 ms"})
_ALL_GONE = breaking(UNEVEN, {"kind": "crash", "device": "*", "at": "900 ms"})
_HANGING = breaking(UNEVEN, {"kind": "hang", "device": "fast", "at": "500 ms"})
_ONE_LATE = breaking(UNEVEN, {"kind": "join", "device": "slow", "at": "3 s"})
_EIGHT: Tables = {"stop": {"rounds": 8}}
_TWELVE: Tables = {"stop": {"rounds": 12}}
_LOUD: Tables = {"kind": "sgd", "lr": 1.5}  # so that the loss rises now and then

_QUORUM = {"kind": "quorum", "share": 0.5, "tolerance": 1.0}

_ROUNDS: list[SettingCase] = [
    *cases(
        rounds("fedavg", job=_UNEQUAL), "rounds",
        devices=2, batching={"size": 8}, local="adam", local_schedule={"kind": "steps", "at": [1]}, skew="adjusted",
        transfer="layer-by-layer", submodel="heterofl", codec="fp16", merge="mean", barrier=_QUORUM,
        server="adam", scaling="linear", schedule={"kind": "steps", "at": [1]}, norm_bound=0.5, average_decay=0.9,
    ),
    *cases(rounds("fedavg", job={"fleet": _ONE_LATE}), "rounds", least=4),
    *cases(rounds("heterofl"), "rounds", slot="500 ms"),
    *cases(rounds("fedavg"), "rounds", slot=Refused("100 ms", "has no effect")),
    *cases(rounds("sync-sgd"), "rounds", local_schedule=Refused({"kind": "steps", "at": [1]}, "has no effect")),
    *cases(rounds("fedavg", job={"fleet": _LOSING}, retry="400 ms"), "rounds", retry="800 ms"),
    *cases(rounds("fedavg", job={"fleet": _HANGING}), "rounds", turn_patience="2 s"),
    *cases(rounds("fedavg", job={"fleet": _ALL_GONE}, patience="5 s"), "rounds", patience="9 s"),
]  # fmt: skip

_RATED: Tables = {"rounds": {"batching": {"kind": "stream", "low": 4, "high": 40, "window": "500 ms"}}}
_PACED: Tables = {"rounds": {"batching": {"kind": "line-rate", "low": 2, "high": 12, "window": "100 ms"}}}
_BATCHING = [
    *cases(rounds("fedavg"), "rounds.batching", size=8),
    *cases(stream("scadles", job=_RATED), "rounds.batching", low=20, high=8, cap=8, window="200 ms"),
    *cases(stream("scadles-plus", job=_PACED), "rounds.batching", low=6, high=3, cap=2, window="300 ms", turns=True),
    *cases(
        rounds("sync-sgd", batching={"kind": "stream", "high": 12}), "rounds.batching",
        low=Refused(4, "has no effect"), window=Refused("3 s", "has no effect"), high=9, cap=6,
    ),
    *cases(
        rounds("sync-sgd", batching={"kind": "line-rate", "high": 12}), "rounds.batching",
        low=Refused(4, "has no effect"), window=Refused("3 s", "has no effect"),
        turns=Refused(True, "has no effect"), high=9, cap=6,
    ),
]  # fmt: skip

_STEPS = {"epochs": 2, "steps": 5, "lr": 0.3, "clip_norm": 0.1, "accumulate": 2, "precision": "bfloat16"}
_NAMED = {"kind": "optimizer", "name": "torch.optim.RMSprop", "options": {"momentum": 0.5}}
_LOCAL = [
    *cases(rounds("sync-sgd"), "rounds.local", clip_norm=0.1, precision="bfloat16"),
    *cases(rounds("fedavg", local={"kind": "sgd", "momentum": 0.5}), "rounds.local", **_STEPS, state="keep",
           momentum=0.9, weight_decay=0.1, nesterov=True),
    *cases(rounds("fedavg", local="proximal"), "rounds.local", mu=0.5),
    *only_long(cases(rounds("fedavg", local={"kind": "proximal", "momentum": 0.5}), "rounds.local", **_STEPS,
                     state="keep", momentum=0.9, weight_decay=0.1, nesterov=True)),
    *cases(rounds("fedavg", local="adam"), "rounds.local", **_STEPS, state="average",
           beta1=0.5, beta2=0.5, epsilon=0.1, weight_decay=0.1),
    *only_long(cases(rounds("fedavg", local="adamw"), "rounds.local", **_STEPS, state="keep",
                     beta1=0.5, beta2=0.5, epsilon=0.1, weight_decay=0.5)),
    *cases(rounds("fedavg", local=_NAMED), "rounds.local", **_STEPS, state="keep",
           name="torch.optim.SGD", options={}),
    *cases(rounds("fedavg", local={"kind": "sgd", "steps": 2}), "rounds.local", epochs=Refused(3, "has no effect")),
]  # fmt: skip

_SCHEDULES = [
    *schedule_cases(lambda schedule: rounds("fedavg", job=_TWELVE, local=_LOUD, schedule=schedule), "rounds.schedule"),
    *schedule_cases(
        lambda schedule: rounds("fedavg", job=_TWELVE, local=_LOUD, local_schedule=schedule), "rounds.local_schedule"
    ),
]

_SKEW = [
    *cases(rounds("fedavg", job=_SKEWED, skew="adjusted"), "rounds.skew", strength=1.0, unseen=0.1),
    *cases(rounds("fedavg", job=_SKEWED, skew="restricted"), "rounds.skew", factor=0.1),
]

_TRANSFER = [
    *cases(rounds("sync-sgd"), "rounds.transfer", window=Refused(3, "has no effect")),
    *cases(rounds("layer-by-layer"), "rounds.transfer", window=1),
    *cases(rounds("ibatch"), "rounds.transfer", window=1),
    *cases(rounds("mg-wfbp"), "rounds.transfer", window=1),
    *cases(rounds("dynacomm"), "rounds.transfer", window=1),
    *cases(rounds("duplex"), "rounds.transfer", window=1),
]

_PLAIN = {"kind": "sgd", "lr": 0.1, "momentum": 0.0}
_MOVING = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}
_TOP_K = {"kind": "top-k", "ratio": 0.1}
_ADAPTIVE = {"kind": "adaptive", "ratio": 0.2, "delta": 0.12}
_GRADED = {"kind": "graded", "ratios": [0.05, 0.2], "delta": 0.5}
_CODEC = [
    *cases(rounds("fedavg", codec={"kind": "int8", "block": 16}), "rounds.codec", block=8, rounding="stochastic"),
    *cases(rounds("sync-sgd", codec=_TOP_K), "rounds.codec",
           error_feedback=False, values="f16", ratio=0.3, warmup=2),
    *cases(rounds("sync-sgd", codec=_TOP_K, server=_PLAIN), "rounds.codec", momentum=0.9),
    *cases(rounds("sync-sgd", codec=_TOP_K, server=_MOVING), "rounds.codec", momentum=Refused(0.9, "both apply")),
    *cases(rounds("sync-sgd", codec=_ADAPTIVE, job=_EIGHT), "rounds.codec",
           error_feedback=True, values="f16", ratio=0.3, delta=0.4, smoothing=1.0),
    *cases(rounds("sync-sgd", codec={**_ADAPTIVE, "delta": 0.9}), "rounds.codec", warmup=2),
    *cases(rounds("sync-sgd", codec={**_ADAPTIVE, "error_feedback": True}, server=_PLAIN), "rounds.codec",
           momentum=0.9),
    *cases(rounds("sync-sgd", codec=_GRADED), "rounds.codec",
           error_feedback=Refused(False, "error_feedback"), values="f16", ratios=[0.1], delta=0.9, warmup=2),
    *cases(rounds("sync-sgd", codec=_GRADED, server=_PLAIN), "rounds.codec", momentum=0.9),
    *cases(rounds("sync-sgd", codec={"kind": "power-sgd", "rank": 1}), "rounds.codec", rank=2, values="int4"),
    *cases(rounds("sync-sgd", codec={**_GRADED, "values": "f16"}), "rounds.codec", error_feedback=False),
]  # fmt: skip

_PULL_CODEC = [
    *cases(rounds("sync-sgd"), "rounds", pull_codec="fp16"),
    *cases(rounds("sync-sgd", pull_codec={"kind": "int8", "block": 16}), "rounds.pull_codec",
           block=8, rounding="stochastic"),
    *cases(rounds("sync-sgd", pull_codec=_TOP_K), "rounds.pull_codec",
           error_feedback=Refused(False, "has no effect"), values="f16", ratio=0.3, warmup=2,
           momentum=Refused(0.9, "for gradients")),
    *cases(rounds("sync-sgd", pull_codec=_ADAPTIVE, job=_EIGHT), "rounds.pull_codec",
           error_feedback=Refused(True, "has no effect"), values="f16", ratio=0.3, delta=0.4, smoothing=1.0, warmup=2,
           momentum=Refused(0.9, "needs error_feedback")),
    *cases(rounds("sync-sgd", pull_codec=_GRADED), "rounds.pull_codec",
           values="f16", ratios=[0.1], delta=0.9, warmup=2, momentum=Refused(0.9, "for gradients"),
           error_feedback=Refused(True, "has no effect")),
    *cases(rounds("sync-sgd", pull_codec={"kind": "power-sgd", "rank": 1}), "rounds.pull_codec", rank=2, values="int4"),
]  # fmt: skip

_BUFFERED = {"barrier": {"kind": "buffered", "size": 2}}
_CLOSING = [
    *cases(rounds("fedavg", job=_EIGHT, barrier=_QUORUM), "rounds.barrier", share=0.9, tolerance=9.0),
    *cases(rounds("fedbuff", job=_EIGHT, **_BUFFERED), "rounds.barrier", size=3),
    *cases(rounds("fedbuff", job=_EIGHT, **_BUFFERED), "rounds.merge", power=2.0),
    *cases(rounds("fedavg", merge="staleness"), "rounds.merge", power=Refused(2.0, "has no effect")),
]  # fmt: skip

_SCALING = [
    *cases(rounds("sync-sgd"), "rounds.scaling", warmup=Refused(2, "has no effect")),
    *cases(rounds("sync-sgd", scaling={"kind": "linear", "base": 8}), "rounds.scaling", warmup=2, base=4),
    *cases(rounds("sync-sgd", scaling={"kind": "sqrt", "base": 8}), "rounds.scaling", warmup=2, base=4),
    *cases(rounds("sync-sgd", scaling={"kind": "capped", "base": 8, "most": 1.5}), "rounds.scaling",
           warmup=2, base=14, most=1.2),
]  # fmt: skip

_OPTIMIZER = optimizer_cases(lambda server: rounds("sync-sgd", server=server), "rounds.server")

CASES = [
    *_ROUNDS, *_BATCHING, *_LOCAL, *_SCHEDULES, *_SKEW, *_TRANSFER, *_CODEC, *_PULL_CODEC, *_CLOSING, *_SCALING,
    *_OPTIMIZER,
]  # fmt: skip

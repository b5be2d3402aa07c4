"""Cases for `[pipeline]` and its parts."""

from __future__ import annotations

from typing import Any

from tests.every_setting.part_cases import optimizer_cases, schedule_cases
from tests.every_setting.setting_case import Refused, SettingCase, cases, only_long
from tests.every_setting.small_jobs import BLOCKS, CHAIN, WIDE, Tables, breaking, every_device, pipeline

__all__ = ["CASES"]

_IGNORED = "has no effect"
_CRASH: Tables = {"kind": "crash", "device": "mid", "at": "2.1 s", "restart": "2 s"}
_CRASHING: Tables = {"fleet": breaking(CHAIN, _CRASH), "evaluate": 0}
_TWENTY: Tables = {"stop": {"rounds": 20}}
_SLOWING: Tables = {
    "fleet": breaking(CHAIN, {"kind": "slow", "device": "mid", "at": "1 s", "factor": 0.1, "lasting": "20 s"}),
    "stop": {"rounds": 24},
}
_JOINING: Tables = {"fleet": breaking(CHAIN, {"kind": "join", "device": "tail", "at": "1 s"}), **_TWENTY}
_LOSING: Tables = {"fleet": breaking(CHAIN, {"kind": "lose", "every": "500 ms", "share": 0.3, "lasting": "500 ms"})}
_HEADLESS: Tables = {"fleet": breaking(CHAIN, {"kind": "crash", "device": "head", "at": "1.5 s"})}
_UNBALANCED: Tables = {
    "fleet": {
        "devices": [
            {"name": "head", "flops": "300 kFLOP/s", "link": WIDE},
            {"name": "mid", "flops": "60 kFLOP/s", "link": WIDE},
            {"name": "tail", "flops": "200 kFLOP/s", "link": WIDE},
        ]
    }
}
_THIN: Tables = {"fleet": every_device(CHAIN, link={"up": "60 kbit/s", "down": "60 kbit/s", "latency": "2 ms"})}
_ALL_GONE: Tables = {"fleet": breaking(CHAIN, {"kind": "crash", "device": "*", "at": "1.5 s"})}

_REPLANNING = {"first": 5, "every": 9, "on_change": False}
_SELDOM = {"first": 0, "every": 20, "on_change": False}

_PIPELINE: list[SettingCase] = [
    *cases(
        pipeline("ftpipehd"), "pipeline",
        batch=8, schedule="gpipe", replication="none", optimizer={"kind": "adam"},
        lr_schedule={"kind": "steps", "at": [3]}, evaluation="pipeline", central="tail",
    ),
    *cases(pipeline("ftpipehd", job=_UNBALANCED), "pipeline", partition="equal"),
    *cases(pipeline("ftpipehd", job={"task": BLOCKS}), "pipeline", between="blocks"),
    *cases(pipeline("ftpipehd", job=_CRASHING), "pipeline", recovery="restart"),
    *cases(pipeline("ftpipehd", job=_SLOWING, adaptation=_REPLANNING), "pipeline",
           adaptation={"every": 0, "on_change": False}),
    *cases(pipeline("ftpipehd", job=_HEADLESS), "pipeline", sources=["mid"], data_copies=2),
    *cases(pipeline("ftpipehd", job=_HEADLESS, sources=["mid", "tail"]), "pipeline", data_copies=Refused(2, _IGNORED)),
    *cases(pipeline("ftpipehd"), "pipeline", layer_costs="macs"),
    *cases(pipeline("ftpipehd", job=_LOSING, retry="300 ms"), "pipeline", retry="900 ms"),
    *cases(pipeline("ftpipehd", job=_ALL_GONE, patience="5 s"), "pipeline", patience="9 s"),
]  # fmt: skip

_NO_MOMENTUM = {"kind": "sgd", "lr": 0.05, "momentum": 0.0}
_SCHEDULES = [
    *cases(pipeline("pipedream", job=_THIN), "pipeline.schedule",
           vertical_sync=True, aggregate=3, predict=True, fill="filling", most=Refused(4, _IGNORED)),
    *cases(pipeline("ftpipehd"), "pipeline.schedule", most=2, micro_batches=4),
    *cases(pipeline("ftpipehd", job=_THIN), "pipeline.schedule", speed=0.3),
    *cases(pipeline("ftpipehd", optimizer=_NO_MOMENTUM), "pipeline.schedule", predict=Refused(True, _IGNORED)),
    *cases(pipeline("gpipe"), "pipeline.schedule", micro_batches=2, vertical_sync=Refused(True, _IGNORED),
           aggregate=3, predict=Refused(True, _IGNORED)),
    *cases(pipeline("single"), "pipeline.schedule", vertical_sync=Refused(True, _IGNORED),
           aggregate=Refused(3, _IGNORED), predict=Refused(True, _IGNORED)),
    *cases(pipeline("single"), "pipeline", partition=Refused("optimal", _IGNORED), between=Refused("blocks", _IGNORED)),
]  # fmt: skip

_ALL = {"kind": "optimal", "order": "given", "subset": False}
_PARTITION = [
    *cases(pipeline("ftpipehd", job=_UNBALANCED, partition=_ALL), "pipeline.partition", order="search", subset=True),
    *cases(pipeline("ftpipehd", partition={"kind": "cuts", "after": [1, 3]}), "pipeline.partition", after=[2]),
]

_TWELVE: Tables = {"stop": {"rounds": 12}, "evaluate": 1}
_LOUD: Tables = {"kind": "sgd", "lr": 1.5}  # so that the loss rises now and then
_TRAINING = [
    *only_long(optimizer_cases(lambda optimizer: pipeline("ftpipehd", optimizer=optimizer), "pipeline.optimizer")),
    *cases(pipeline("ftpipehd", optimizer={"kind": "sgd", "lr": 0.2, "momentum": 0.9}), "pipeline.optimizer", lr=0.5),
    *only_long(
        schedule_cases(
            lambda schedule: pipeline("single", job=_TWELVE, optimizer=_LOUD, lr_schedule=schedule),
            "pipeline.lr_schedule",
        )
    ),
    *cases(pipeline("single", lr_schedule={"kind": "steps", "at": [2]}), "pipeline.lr_schedule", by=0.5),
]

_PERIODIC = {"kind": "periodic", "chain": 3, "central": 5}
_LAGGING = {"kind": "incremental", "lag": 0}
_REPLICATION = [
    *cases(pipeline("ftpipehd", replication="none"), "pipeline.replication",
           optimizer_state=Refused(False, _IGNORED), chunk=Refused("1 KiB", _IGNORED)),
    *cases(pipeline("ftpipehd", replication=_PERIODIC), "pipeline.replication",
           optimizer_state=False, chunk="200 B", chain=2, central=2),
    *cases(pipeline("ftpipehd", replication={"kind": "periodic", "chain": 0, "central": 0}), "pipeline.replication",
           optimizer_state=Refused(False, _IGNORED), chunk=Refused("200 B", _IGNORED)),
    *cases(pipeline("ftpipehd", job=_THIN, replication="incremental"), "pipeline.replication",
           optimizer_state=False, chunk="200 B", lag=6, central=3),
    *cases(pipeline("ftpipehd", job=_THIN, replication=_LAGGING), "pipeline.replication", share=0.05),
]  # fmt: skip


def _recovering(**recovery: Any) -> Tables:
    return pipeline("ftpipehd", job=_CRASHING, replication=_PERIODIC, recovery=recovery)


_RECOVERY = [
    *cases(_recovering(kind="repartition"), "pipeline.recovery",
           notice="timer", factor=Refused(3.0, _IGNORED), consistent=False),
    *cases(_recovering(kind="repartition", notice="timer"), "pipeline.recovery", factor=4.0),
    *cases(_recovering(kind="neighbour"), "pipeline.recovery",
           notice="timer", factor=Refused(3.0, _IGNORED), consistent=False),
    *cases(_recovering(kind="neighbour", notice="timer"), "pipeline.recovery", factor=4.0),
    *cases(_recovering(kind="restart"), "pipeline.recovery",
           notice="timer", factor=Refused(3.0, _IGNORED), consistent=False),
    *cases(_recovering(kind="restart", notice="timer"), "pipeline.recovery", factor=4.0),
]  # fmt: skip

_ADAPTATION = [
    *cases(pipeline("ftpipehd", job=_SLOWING, adaptation=_REPLANNING), "pipeline.adaptation",
           first=3, on_change=True, horizon=1),
    *cases(pipeline("ftpipehd", job=_SLOWING, adaptation=_SELDOM), "pipeline.adaptation", every=6),
    *cases(pipeline("ftpipehd", job=_JOINING), "pipeline.adaptation", join=False),
    *cases(pipeline("ftpipehd", job=_SLOWING), "pipeline.adaptation", layers=False),
    *cases(pipeline("ftpipehd", adaptation={"every": 0}), "pipeline.adaptation", first=Refused(3, _IGNORED)),
    *cases(pipeline("pipedream"), "pipeline.adaptation", first=Refused(3, _IGNORED), horizon=Refused(1, _IGNORED)),
]  # fmt: skip

_BESIDE = [
    *cases(pipeline("ftpipehd"), "", pipeline={"batch": 8},
           rounds=Refused({"codec": "fp16"}, "rounds: has no effect in a pipeline, which has no rounds; remove it (c"),
           split=Refused("iid", _IGNORED), stream=Refused({"late": "1 s"}, _IGNORED), samples=Refused(40, _IGNORED)),
    *cases(pipeline("ftpipehd"), "task", costs=Refused("resnet20", _IGNORED)),
]  # fmt: skip

CASES = [*_PIPELINE, *_TRAINING, *_SCHEDULES, *_PARTITION, *_REPLICATION, *_RECOVERY, *_ADAPTATION, *_BESIDE]

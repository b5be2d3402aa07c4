"""Cases for the fleet: devices, links, traces and faults."""

from __future__ import annotations

from typing import Any

from tests.every_setting.part_cases import trace_cases
from tests.every_setting.setting_case import Refused, SettingCase, cases, only_long
from tests.every_setting.small_jobs import LINK, UNEVEN, Tables, breaking, every_device, rounds

__all__ = ["CASES"]

_SLOW_COORDINATOR: Tables = {"link": {"up": "300 kbit/s", "down": "300 kbit/s"}}
_PARTED: Tables = {"kind": "partition", "device": "mid-0", "at": "400 ms", "lasting": "6 s"}


def _on(fleet: Tables, recipe: str = "fedavg", **parts: Any) -> Tables:
    return rounds(recipe, job={"fleet": fleet, "stop": {"rounds": 6}}, **parts)


_FLEET: list[SettingCase] = [
    *cases(_on(UNEVEN), "fleet", devices=UNEVEN["devices"][:2], coordinator=_SLOW_COORDINATOR, faults=[_PARTED]),
    *cases(_on(breaking(UNEVEN, _PARTED)), "fleet", lease="4 s"),
    *cases(_on(breaking(UNEVEN, {"kind": "crash", "device": "mid-0", "at": "400 ms"})), "fleet", notice="3 s"),
    *cases(_on({**UNEVEN, "coordinator": _SLOW_COORDINATOR}), "fleet.coordinator", link="lan"),
    *cases(
        _on(UNEVEN), "fleet.devices.0",
        name="other", count=2, flops="100 kFLOP/s", memory=Refused("1 kB", "memory"),
        link="lan", speed={"kind": "constant", "level": 0.5}, available={"kind": "constant", "level": 0.0},
    ),
    *cases(_on({"devices": [{"name": "d", "flops": "1 MFLOP/s"}]}), "fleet.devices.0", preset="phone"),
    *cases(
        _on({"devices": [{"name": "d", "flops": "1 MFLOP/s", "link": LINK}]}), "fleet.devices.0.link",
        up="50 kbit/s", down="50 kbit/s", latency="50 ms", overhead="20 ms", loss=0.4,
        quality={"kind": "constant", "level": 0.5},
    ),
]  # fmt: skip


def _with_quality(trace: Tables) -> Tables:
    return _on(every_device(UNEVEN, link={**LINK, "quality": trace}))


def _with_presence(trace: Tables) -> Tables:
    return _on({**UNEVEN, "devices": [*UNEVEN["devices"][:2], {**UNEVEN["devices"][2], "available": trace}]})


def _with_coordinator(**link: Any) -> Tables:
    return _on({**UNEVEN, "coordinator": {"link": {**_SLOW_COORDINATOR["link"], **link}}})


_TRACES = [
    *trace_cases(lambda trace: _on(every_device(UNEVEN, speed=trace)), "fleet.devices.1.speed"),
    *trace_cases(_with_presence, "fleet.devices.2.available"),
    *trace_cases(_with_quality, "fleet.devices.1.link.quality"),
    *only_long(trace_cases(lambda trace: _with_coordinator(quality=trace), "fleet.coordinator.link.quality")),
    *cases(_with_coordinator(), "fleet.coordinator.link", up="100 kbit/s", down="100 kbit/s", latency="50 ms",
           overhead="20 ms", loss=0.4, quality={"kind": "constant", "level": 0.5}),
]  # fmt: skip


def _breaks(kind: str, **settings: Any) -> Tables:
    return _on(breaking(UNEVEN, {"kind": kind, "device": "fast", "at": "500 ms", **settings}), retry="300 ms")


def _keeps_breaking(kind: str, **settings: Any) -> Tables:
    return _on(breaking(UNEVEN, {"kind": kind, "device": "fast", "every": "1 s", **settings}), retry="300 ms")


_LEAVING: Tables = {"kind": "leave", "at": "500 ms"}
_RULE = "fleet.faults.0"
_WHEN = {"device": "slow", "at": "900 ms"}
_LASTING = {"lasting": "500 ms"}
_FAULTS = [
    *cases(_breaks("crash", restart="300 ms"), _RULE, **_WHEN, restart="2 s"),
    *cases(_breaks("restart"), _RULE, **_WHEN),
    *cases(_breaks("leave", back="300 ms"), _RULE, **_WHEN, back="2 s"),
    *cases(_breaks("join"), _RULE, **_WHEN),
    *cases(_breaks("partition", **_LASTING), _RULE, **_WHEN, lasting="3 s"),
    *cases(_breaks("slow", **_LASTING), _RULE, **_WHEN, lasting="1 s", factor=0.05),
    *cases(_breaks("hang", **_LASTING), _RULE, **_WHEN, lasting="1 s"),
    *cases(_breaks("lose", share=0.9, **_LASTING), _RULE, **_WHEN, lasting="1500 ms", share=0.3),
    *cases(_keeps_breaking("crash", restart="300 ms"), _RULE, every="700 ms"),
    *cases(_keeps_breaking("restart"), _RULE, every="700 ms"),
    *cases(_keeps_breaking("leave", back="300 ms"), _RULE, every="700 ms"),
    *cases(_on(breaking(UNEVEN, _LEAVING, {"kind": "join", "every": "1 s"})), "fleet.faults.1", every="300 ms"),
    *cases(_keeps_breaking("partition", **_LASTING), _RULE, every="700 ms"),
    *cases(_keeps_breaking("slow", **_LASTING), _RULE, every="700 ms"),
    *cases(_keeps_breaking("hang", **_LASTING), _RULE, every="700 ms"),
    *cases(_keeps_breaking("lose", share=0.9, **_LASTING), _RULE, every="700 ms"),
]  # fmt: skip

CASES = [*_FLEET, *_TRACES, *_FAULTS]

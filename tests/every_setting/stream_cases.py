"""Cases for `[stream]` and its parts; sources of live streams are compared by what they ask of a broker."""

from __future__ import annotations

from pathlib import Path

from tests.every_setting.outcomes import stream_calls, stream_contents
from tests.every_setting.part_cases import trace_cases
from tests.every_setting.setting_case import Refused, SettingCase, cases, only_long
from tests.every_setting.small_jobs import Tables, stream

__all__ = ["CASES"]

_LEVELS: Tables = {"kind": "piecewise", "at": ["0 s", "1 s", "2 s"], "levels": [30.0, 8.0, 50.0], "repeat": "3 s"}
_HALF: Tables = {"kind": "constant", "level": 0.5}
_DRAWN = {"mean": 20.0, "deviation": 3.0, "least": 28.0, "level": _HALF}
_ONE_CLASS: Tables = {"split": {"kind": "classes", "per_device": 1}}
_MISSING_CLASSES: Tables = {"kind": "missing-classes", "alpha": 0.5, "beta": 0.5}
_SKEWED: Tables = {
    "split": {"kind": "dirichlet", "alpha": 0.5}, "stop": {"rounds": 6},
    "rounds": {"batching": {"kind": "fixed", "size": 10}},
}  # fmt: skip

_STREAM: list[SettingCase] = [
    *cases(stream("scadles"), "stream", rate={"kind": "constant"}, injection={"kind": "broadcast", "alpha": 0.5}),
    *cases(stream("scadles-injection"), "stream", raw_data=Refused(False, "raw_data = false")),
    *cases(stream("scadles-injection", job=_ONE_CLASS, injection={"alpha": 0.5, "beta": 0.5}), "stream.injection",
           alpha=0.25, beta=0.25),
    *cases(stream("scadles", job=_ONE_CLASS, injection=_MISSING_CLASSES), "stream.injection", alpha=0.25, beta=0.25),
    *cases(stream("fedavg"), "rounds.local", epochs=Refused(2, "has no effect"), steps=Refused(2, "has no effect")),
]  # fmt: skip

_RATES = [
    *cases(stream("scadles", rate={"kind": "constant", "per_second": 24.0}), "stream.rate",
           per_second=40.0, level=_HALF),
    *cases(stream("scadles", rate={"kind": "uniform", "mean": 30.0, "deviation": 14.0}), "stream.rate", **_DRAWN),
    *cases(stream("scadles", rate={"kind": "normal", "mean": 30.0, "deviation": 14.0}), "stream.rate", **_DRAWN),
    *cases(stream("scadles", rate={"kind": "scadles"}), "stream.rate", set="S2", level=_HALF),
    *cases(stream("scadles", rate={"kind": "trace", "level": _LEVELS}), "stream.rate",
           level={**_LEVELS, "repeat": "5 s"}),
]  # fmt: skip

_TRACES = only_long(
    trace_cases(
        lambda trace: stream("scadles", rate={"kind": "constant", "per_second": 24.0, "level": trace}),
        "stream.rate.level",
    )
)

_BUFFERS = [
    *cases(stream("ddl", job={"stop": {"rounds": 6}}), "stream", buffer="truncation"),
    *cases(stream("ddl", job={"stop": {"rounds": 6}}), "stream.buffer", most=70),
    *cases(stream("scadles-truncation"), "stream.buffer", seconds="9 s"),
    *cases(stream("ddl", job=_SKEWED, buffer={"kind": "value", "worth": "loss"}), "stream.buffer",
           seconds="9 s", worth="same"),
]  # fmt: skip

_OWN = "tests.every_setting.own_code"
_LIVE = [
    *cases(stream("scadles", source={"kind": "mqtt"}), "stream", stream_calls, source={"kind": "kafka"}),
    *cases(stream("scadles", source={"kind": "python", "generator": f"{_OWN}:dark_samples"}), "stream.source",
           stream_contents, generator=f"{_OWN}:light_samples"),
    *cases(stream("scadles", source={"kind": "mqtt"}), "stream.source", stream_calls,
           host="broker", port=1884, topic="other/{device}", username="me", tls=True, retry="3 s",
           password_file=str(Path(__file__).parent / "levels.csv")),
    *cases(stream("scadles", source={"kind": "kafka"}), "stream.source", stream_calls,
           servers="broker:1", topic="other.{device}", group="other", retry="3 s", options={"fetch.min.bytes": 10}),
    *cases(stream("scadles", source={"kind": "python", "generator": f"{_OWN}:dark_samples"}), "stream",
           stream_contents, late="10 s"),
    *cases(stream("ddl", source={"kind": "python", "generator": f"{_OWN}:dark_samples"}), "stream",
           stream_contents, memory="40 B"),
    *cases(stream("scadles"), "stream", late=Refused("10 s", "has no effect")),
]  # fmt: skip

CASES = [*_STREAM, *_RATES, *_TRACES, *_BUFFERS, *_LIVE]

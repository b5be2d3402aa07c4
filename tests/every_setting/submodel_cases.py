"""Cases for the sub-models of a round."""

from __future__ import annotations

from typing import Any

from tests.every_setting.setting_case import Refused, SettingCase, cases, only_long
from tests.every_setting.small_jobs import CONV, PICTURES, UNEVEN, WALK, Tables, every_device, rounds

__all__ = ["CASES", "TABLE", "VARYING"]

VARYING: Tables = {"fleet": every_device(UNEVEN, speed=WALK), "task": CONV}
_ADAPTED: Tables = {"fleet": VARYING["fleet"], "task": {"model": "tests.frozen.own:adapted_net", "data": PICTURES}}
_IN_GROUPS: Tables = {"task": CONV, "split": {"kind": "class-groups"}}
_PER_ROUND = {"scaled": True, "static": False, "capacity": "least", "levels": [0.5]}
TABLE: Tables = {
    "model": "net", "sets": ["0.0", "1.0", "1.2"], "baseline_macs": 100,
    "entries": [
        {"macs": 30, "gain": 0.5, "rates": [0.5, 0.4, 0.5]}, {"macs": 60, "gain": 0.8, "rates": [0.2, 0.3, 0.1]},
    ],
}  # fmt: skip
_TIMED: Tables = {**TABLE, "cost": "seconds"}
_IGNORED = "has no effect"


def _with(recipe: str, job: Tables = VARYING, **submodel: Any) -> Tables:
    return rounds(recipe, job=job, submodel=submodel)


_WIDTHS: list[SettingCase] = [
    *cases(_with("fedavg"), "rounds.submodel", static=True, scaled=Refused(True, _IGNORED)),
    *cases(_with("distreal"), "rounds.submodel",
           scaled=False, static=True, table=TABLE, units="leading", mean="trained", grid=2),
    *cases(_with("distreal", table=TABLE), "rounds.submodel.table",
           sets=Refused(["a", "b", "c"], "another model"),
           entries=TABLE["entries"][:1], cost="seconds"),
    *cases(_with("distreal", table=_TIMED), "rounds.submodel.table", baseline_macs=70),
    *cases(_with("distreal", table=_TIMED), "rounds.submodel.table.entries.0", macs=10, rates=[0.7, 0.7, 0.7]),
    *only_long(cases(_with("uniform-dropout"), "rounds.submodel", scaled=False, static=True, grid=2)),
    *only_long(cases(_with("federated-dropout"), "rounds.submodel", **_PER_ROUND | {"scaled": False, "static": True})),
    *cases(_with("heterofl"), "rounds.submodel", **_PER_ROUND),
    *only_long(cases(_with("fedrolex"), "rounds.submodel", **_PER_ROUND)),
    *only_long(cases(_with("fjord"), "rounds.submodel", **{**_PER_ROUND, "static": True})),
    *cases(_with("small"), "rounds.submodel", share=0.6, static=True, scaled=Refused(True, _IGNORED)),
    *cases(_with("lora-rank", _ADAPTED), "rounds.submodel", capacity="least", levels=[0.5],
           scaled=Refused(True, _IGNORED), static=Refused(True, _IGNORED)),
]  # fmt: skip

_CALIBRATED = _with("decoupled", _IN_GROUPS, calibration=16)
_GROUPS = [
    *cases(
        _with("decoupled", _IN_GROUPS), "rounds.submodel",
        groups=4, alike=True, depth=2, held={"slow": [1], "fast": [0]}, variant="attributed", trunk="frozen",
        negatives="generated", calibration=16, held_out=Refused(False, _IGNORED), extent=Refused("heads", _IGNORED),
        scaled=Refused(True, _IGNORED), static=Refused(True, _IGNORED),
    ),
    *cases(_with("decoupled", _IN_GROUPS), "rounds.submodel",
           each=2, saving=8.0, distill=0.5, cache=Refused("1 MB", "frozen trunk")),
    *cases(_with("decoupled", _IN_GROUPS, trunk="frozen"), "rounds.submodel", cache="1 MB"),
    *cases(_CALIBRATED, "rounds.submodel", held_out=False, extent="heads"),
]  # fmt: skip

CASES = [*_WIDTHS, *_GROUPS]

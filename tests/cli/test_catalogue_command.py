from __future__ import annotations

from potluck.fleet import PRESETS
from potluck.recipes import CATALOGUE
from tests.cli.calling import Shell


def test_recipes_come_with_their_sources(potluck: Shell) -> None:
    text = potluck("recipes").out
    for name, recipe in CATALOGUE.items():
        assert f"{name} " in text
        assert recipe.summary in text
        assert recipe.source in text
    assert potluck("recipes", "--json").json["recipes"]["fedavg"]["source"].startswith("McMahan")


def test_fleets_come_with_the_devices_they_are_made_of(potluck: Shell) -> None:
    text = potluck("fleets").out
    assert "kitchen-table" in text
    assert all(board.source in text for board in PRESETS.values())
    assert "5 ms latency, 1 ms per transfer" in text
    found = potluck("fleets", "--json").json
    assert set(found["devices"]) == set(PRESETS)
    assert found["devices"]["pi4"]["flops"] == "12 GFLOP/s"
    assert found["links"]["lan"]["up"] == "1 Gbit/s"

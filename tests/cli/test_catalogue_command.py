from __future__ import annotations

from pathlib import Path

from potluck.fleet import PRESETS
from potluck.recipes import CATALOGUE
from tests.cli.calling import Shell, start


def test_recipes_are_listed_with_their_sources(potluck: Shell) -> None:
    text = potluck("recipes").out
    for name, recipe in CATALOGUE.items():
        assert f"{name} " in text
        assert recipe.summary in text
        assert f"built in: {recipe.source}" in text
    assert potluck("recipes", "--json").json["recipes"]["fedavg"]["source"].startswith("McMahan")


def test_third_party_recipes_are_listed_and_broken_ones_reported_on_one_line(tmp_path: Path) -> None:
    info = tmp_path / "extra-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[potluck.recipes]\nslow = extra_recipes:slow\nfedavg = extra_recipes:slow\nbroken = no_such_module:x\n"
    )
    (tmp_path / "extra_recipes.py").write_text("slow = {'rounds': {'local': {'kind': 'sgd', 'lr': 0.001}}}\n")
    out, err = start(("recipes",), tmp_path, path=tmp_path).communicate()
    assert "slow" in out
    assert out.rstrip().endswith(" extra")
    assert err.splitlines() == [
        "warning: recipe 'fedavg' of extra is ignored: a built-in recipe has this name; rename the entry point",
        "warning: recipe 'broken' of extra (no_such_module:x) does not work: ModuleNotFoundError: No module named"
        " 'no_such_module'",
    ]


def test_fleets_are_listed_with_their_devices(potluck: Shell) -> None:
    text = potluck("fleets").out
    assert "kitchen-table" in text
    assert all(preset.source in text for preset in PRESETS.values())
    assert "5 ms latency, 1 ms per transfer" in text
    listed = potluck("fleets", "--json").json
    assert set(listed["devices"]) == set(PRESETS)
    assert listed["devices"]["pi4"]["flops"] == "12 GFLOP/s"
    assert listed["links"]["lan"]["up"] == "1 Gbit/s"

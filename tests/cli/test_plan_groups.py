from __future__ import annotations

from pathlib import Path

from tests.cli.calling import ROOT, Shell

GROUPS = ("--set", "recipe=decoupled", "--set", "rounds.submodel={kind='class-groups', groups=2}")


def test_every_cut_has_its_place_in_the_table(potluck: Shell, folder: Path) -> None:
    found = potluck("plan", ROOT / "examples/decoupled/job.toml")
    assert found.code == 0
    table = found.out.split("by how the network is cut\n")[1].splitlines()
    assert table[0].split()[:2] == ["shared", "layers"]
    assert [row.split()[0] for row in table[1:4]] == ["0", "1", "2"]
    assert "(this job)" in table[2]
    assert "group 2: laptop-1, phone, 2.24 times fewer MACs" in found.out


def test_the_same_as_data(potluck: Shell, folder: Path) -> None:
    found = potluck("plan", "job.toml", "--json", *GROUPS).json["class_groups"]
    assert [entry["groups"] for entry in found["held"]] == [[0], [1]]
    assert {(cut["depth"], cut["groups"]) for cut in found["cuts"]} >= {(0, 2), (1, 2)}
    (own,) = [cut["times"] for cut in found["cuts"] if (cut["depth"], cut["groups"]) == (1, 2)]
    assert found["held"][0]["times"] == own


def test_a_job_without_groups_has_no_such_table(potluck: Shell, folder: Path) -> None:
    assert "class_groups" not in potluck("plan", "job.toml", "--json").json

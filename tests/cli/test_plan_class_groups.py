from __future__ import annotations

from pathlib import Path

from tests.cli.calling import ROOT, Shell

GROUPS = ("--set", "recipe=decoupled", "--set", "rounds.submodel={kind='class-groups', groups=2}")


def test_every_cut_is_in_the_table(potluck: Shell, folder: Path) -> None:
    result = potluck("plan", ROOT / "examples/decoupled/job.toml")
    assert result.code == 0
    table = result.out.split("by depth and number of groups\n")[1].splitlines()
    assert table[0].split()[:2] == ["shared", "layers"]
    assert [row.split()[0] for row in table[1:4]] == ["0", "1", "2"]
    assert table[2].split()[4:7] == ["2.24x", "(this", "job)"]
    assert "group 2: laptop-1, phone, 2.24x fewer MACs" in result.out


def test_json_contains_the_same_cuts(potluck: Shell, folder: Path) -> None:
    report = potluck("plan", "job.toml", "--json", *GROUPS).json["class_groups"]
    assert [entry["groups"] for entry in report["held"]] == [[0], [1]]
    assert {(cut["depth"], cut["groups"]) for cut in report["cuts"]} >= {(0, 2), (1, 2)}
    (times,) = [cut["times"] for cut in report["cuts"] if (cut["depth"], cut["groups"]) == (1, 2)]
    assert report["held"][0]["times"] == times


SLOT = ("--set", "rounds.slot='20 us'")


def test_each_device_kind_gets_the_cut_that_fits_it(potluck: Shell, folder: Path) -> None:
    result = potluck("plan", ROOT / "examples/decoupled/job.toml", *SLOT)
    head, *rows = result.out.split("slot of 20 µs (rounds.slot)\n")[1].splitlines()[:6]
    assert head.split() == ["device", "affords", "shared", "layers", "groups", "fewer", "MACs", "network", "kept"]
    assert [row.split()[0] for row in rows] == ["desktop", "jetson-nano", "laptop-0", "pi5", "pi4-0"]  # fastest first
    assert "this job" not in "".join(rows)
    data = potluck("plan", ROOT / "examples/decoupled/job.toml", "--json", *SLOT).json["class_groups"]
    assert data["job"] == {"depth": 1, "groups": 5}
    budgets, kept_fractions = (
        [pick["budget"] for pick in data["picks"]],
        [pick["cut"]["kept"] for pick in data["picks"]],
    )
    assert budgets == sorted(budgets, reverse=True)
    assert kept_fractions == sorted(kept_fractions, reverse=True)
    for pick in data["picks"]:
        assert 1 / pick["cut"]["times"] <= pick["budget"]


def test_auto_groups_use_the_cut_of_the_slowest_device(potluck: Shell, folder: Path) -> None:
    auto = ("--set", "rounds.submodel.groups=auto", "--set", "rounds.submodel.depth=auto", *SLOT)
    report = potluck("plan", ROOT / "examples/decoupled/job.toml", "--json", *auto).json["class_groups"]
    last = report["picks"][-1]["cut"]
    assert report["job"] == {"depth": last["depth"], "groups": last["groups"]} == {"depth": 0, "groups": 5}


def test_the_output_says_when_no_cut_fits(potluck: Shell, folder: Path) -> None:
    result = potluck("plan", ROOT / "examples/decoupled/job.toml", "--set", "rounds.slot='2 us'")
    assert "none fits" in result.out


def test_a_job_without_groups_has_no_such_table(potluck: Shell, folder: Path) -> None:
    assert "class_groups" not in potluck("plan", "job.toml", "--json").json

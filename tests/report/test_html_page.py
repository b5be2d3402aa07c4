from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from potluck.report import render_report
from potluck.report.html_page import encode_shown, label_runs
from tests.report.runs import JOB, keep, rounds

NASTY = "<script>alert(1)</script>"


def test_a_page_loads_no_external_resources(tmp_path: Path) -> None:
    page = render_report([keep(tmp_path, rounds())])
    assert "default-src 'none'" in page
    assert "connect-src 'none'" in page
    assert not re.search(r"""(src|href)=["']?(https?:|//)""", page)
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    job = JOB.replace('model = "mlp"', f'model = "{NASTY}"')
    page = render_report([keep(tmp_path, rounds(2, ["pi4-0", NASTY]), job=job, finished=False)])
    assert NASTY not in page
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    names = [device["name"] for device in json.loads(data[1])["runs"][0]["devices"]]
    assert NASTY in names


def test_control_characters_are_written_out_and_line_ends_remain(tmp_path: Path) -> None:
    text = 'a\x1b\u202e\\u0041\n"q"\r\ttab \\'
    shown = json.loads(encode_shown({"job": text}))["job"]
    assert shown == 'a\\u001b\\u202e\\u0041\n"q"\\r\ttab \\'


def test_a_page_holds_several_runs(tmp_path: Path) -> None:
    page = render_report([keep(tmp_path / "a", rounds(2)), keep(tmp_path / "b", rounds(3))])
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert [run["id"] for run in json.loads(data[1])["runs"]] == ["a", "b"]


def test_the_page_of_a_run_is_small(tmp_path: Path) -> None:
    assert len(render_report([keep(tmp_path, rounds(100))])) < 200_000


def test_nothing_here_loads_torch() -> None:
    """A report is made where journals are, also on a machine without PyTorch."""
    rooms = "potluck.report, potluck.report.report_server, potluck.report.journal_export"
    program = f"import sys, {rooms}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def _view(id: str, recipe: str = "fedavg", world: str = "simulated", job: str = "") -> dict[str, Any]:
    return {"id": id, "recipe": recipe, "world": world, "job": job}


def _labels(*views: dict[str, Any]) -> list[str]:
    return [view["label"] for view in label_runs(views)]


def test_runs_of_different_recipes_are_named_by_them_whatever_else_that_changes() -> None:
    assert _labels(_view("a", job="evaluate = 1"), _view("b", "gpipe", job="evaluate = 100")) == ["fedavg", "gpipe"]


def test_runs_of_one_recipe_are_named_by_the_settings_that_differ() -> None:
    first, second = (
        'seed = 1\n[rounds.local]\nlr = 0.1\nkind = "sgd"',
        'seed = 2\n[rounds.local]\nlr = 0.2\nkind = "sgd"',
    )
    labels = _labels(_view("a", job=first), _view("b", job=second), _view("c", "fedbuff", job=first))
    assert labels == ["fedavg, seed 1, lr 0.1", "fedavg, seed 2, lr 0.2", "fedbuff"]


def test_live_runs_are_marked() -> None:
    assert _labels(_view("a"), _view("b", world="live"), _view("c", "fedbuff", "live")) == [
        "fedavg",
        "fedavg (live)",
        "fedbuff (live)",
    ]


def test_equal_runs_are_told_apart_by_their_folders() -> None:
    assert _labels(_view("a"), _view("b")) == ["fedavg, a", "fedavg, b"]


def test_many_differences_are_cut_short_and_a_damaged_job_is_none() -> None:
    texts = ["\n".join(f"key{key} = {key + add}" for key in range(9)) for add in (0, 1)]
    assert _labels(*(_view(str(place), job=text) for place, text in enumerate(texts))) == [
        "fedavg, key0 0, key1 1, key2 2, …",
        "fedavg, key0 1, key1 2, key2 3, …",
    ]
    assert _labels(_view("a", job="= ="), _view("b", "")) == ["fedavg", "b"]

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from potluck.report import render_report
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


def test_a_page_holds_several_runs(tmp_path: Path) -> None:
    page = render_report([keep(tmp_path / "a", rounds(2)), keep(tmp_path / "b", rounds(3))])
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert [run["id"] for run in json.loads(data[1])["runs"]] == ["a", "b"]


def test_the_page_of_a_run_is_small(tmp_path: Path) -> None:
    assert len(render_report([keep(tmp_path, rounds(100))])) < 200_000


def test_the_report_package_does_not_import_torch() -> None:
    """Reports can be made on a machine without PyTorch."""
    modules = "potluck.report, potluck.report.report_server, potluck.report.journal_export"
    program = f"import sys, {modules}; print('torch' in sys.modules)"
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "False"

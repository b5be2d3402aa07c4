from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from potluck.journal import Journal
from potluck.report.report_server import create_app
from tests.report.runs import faults, keep, metrics, one_round, rounds

prometheus = pytest.importorskip("prometheus_client.parser")


class Client:
    """Calls the application without a socket."""

    def __init__(self, root: Path) -> None:
        self._transport = httpx.ASGITransport(create_app(root))

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return asyncio.run(self._get(path, headers))

    async def _get(self, path: str, headers: Mapping[str, str] | None) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._transport, base_url="http://127.0.0.1:8765") as client:
            return await client.get(path, headers=headers, follow_redirects=True)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    keep(tmp_path / "first", [*rounds(), *faults()])
    keep(tmp_path / 'sec"ond', rounds(3))
    return Client(tmp_path)


def test_runs_are_listed(client: Client) -> None:
    runs = client.get("/runs.json").json()
    assert {run["id"]: run["rounds"] for run in runs} == {"first": 20, 'sec"ond': 3}
    assert "Potluck" in client.get("/").text


def test_a_finished_run_is_sent_in_full_and_the_stream_ends(client: Client) -> None:
    body = client.get("/run/first/events").text
    events = [event.split("\n", 1)[0] for event in body.split("\n\n") if event]
    assert events == ["event: whole", "event: over"]
    view = json.loads(body.split("data: ", 1)[1].split("\n", 1)[0])
    assert view["figures"]["rounds"] == 20


def test_a_run_has_its_page_and_its_report(client: Client) -> None:
    assert "connect-src 'self'" in client.get("/run/first").text
    assert "connect-src 'none'" in client.get("/run/first/report.html").text


def test_runs_can_be_compared(client: Client) -> None:
    assert client.get("/compare?run=first&run=sec%22ond").text.count('"figures":') == 2
    assert client.get("/compare?run=first&run=nobody").status_code == 404


@pytest.mark.parametrize("name", ["nobody", "..", "%2e%2e%2fetc", "first%2f..%2f.."])
def test_only_listed_runs_can_be_requested(client: Client, name: str) -> None:
    assert client.get(f"/run/{name}/events").status_code == 404


def test_requests_with_a_foreign_host_name_are_refused(client: Client) -> None:
    assert client.get("/runs.json", headers={"host": "evil.example"}).status_code == 400


@pytest.mark.parametrize("path", ["/", "/runs.json", "/run/first/", "/run/first/report.html", "/metrics", "/nobody"])
def test_every_response_confines_what_a_browser_does_with_it(client: Client, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"


def test_metrics_are_in_prometheus_format(client: Client) -> None:
    text = client.get("/metrics").text
    families = {family.name: family for family in prometheus.text_string_to_metric_families(text)}
    assert families["potluck_rounds"].samples[0].value in (3.0, 20.0)
    labels = families["potluck_device_seconds"].samples[0].labels
    assert labels["run"] in ("first", 'sec"ond')
    assert labels["device"] == "pi4-0"


def test_the_metrics_of_a_task_are_in_prometheus_format(tmp_path: Path) -> None:
    keep(tmp_path / "run", rounds(3) + metrics())
    text = Client(tmp_path).get("/metrics").text
    families = {family.name: family for family in prometheus.text_string_to_metric_families(text)}
    values = {sample.labels["metric"]: sample.value for sample in families["potluck_metric"].samples}
    assert values == {"perplexity": 2.5, "f1": 0.25}


class _Reading:
    """Counts the files that are opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: list[str] = []
        for name in ("open", "read_text", "read_bytes"):
            monkeypatch.setattr(Path, name, self._counted(getattr(Path, name)))

    def _counted(self, open_file: Any) -> Any:
        def counted(path: Path, *args: Any, **options: Any) -> Any:
            self.files.append(path.name)
            return open_file(path, *args, **options)

        return counted


@pytest.mark.parametrize("address", ["/metrics", "/runs.json"])
def test_a_repeated_request_reads_no_files_until_the_run_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """A scraper that polls every second must not slow down the run."""
    folder = keep(tmp_path / "going", rounds(3), finished=False)
    client, reading = Client(tmp_path), _Reading(monkeypatch)
    monkeypatch.setattr("potluck.report.report_server._TIME_FRACTION", float("inf"))
    first = client.get(address).text
    assert "journal.jsonl" in reading.files
    reading.files.clear()
    assert client.get(address).text == first
    assert reading.files == []
    with Journal(folder / "journal.jsonl", (folder / "journal.jsonl").stat().st_size) as journal:
        for record in one_round(3):
            journal.write_record(record)
    reading.files.clear()
    assert client.get(address).text != first
    assert set(reading.files) == {"journal.jsonl"}


def test_metrics_of_a_busy_run_are_recomputed_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = keep(tmp_path / "going", rounds(3), finished=False)
    client = Client(tmp_path)
    monkeypatch.setattr("potluck.report.report_server._TIME_FRACTION", 1e-9)
    first = client.get("/metrics").text
    with Journal(folder / "journal.jsonl", (folder / "journal.jsonl").stat().st_size) as journal:
        for record in one_round(3):
            journal.write_record(record)
    assert client.get("/metrics").text == first


def test_metrics_show_that_a_run_has_finished(tmp_path: Path) -> None:
    folder = keep(tmp_path / "going", rounds(3), finished=False)
    client = Client(tmp_path)
    assert 'potluck_running{run="going"} 1' in client.get("/metrics").text
    (folder / "summary.json").write_text('{"status": "done"}')
    assert 'potluck_running{run="going"} 0' in client.get("/metrics").text

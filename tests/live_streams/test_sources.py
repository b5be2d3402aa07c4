"""Stream sources of live devices that fail, end or send invalid samples."""

from __future__ import annotations

import asyncio
import math
import os
from pathlib import Path
from typing import Any

import pytest

from potluck.cli.summary_text import print_summary
from potluck.data.buffers import SampleAccount
from potluck.journal import Instant, Span, read_journal
from tests.data.streams.brokers import MOSQUITTO, Mosquitto
from tests.live.live_scenarios import RunControl, run_live
from tests.live_streams.sensors import SHAPE, Publishing, end_marker
from tests.worlds.live.live_fleet import free_address


def _job(source: dict[str, Any], **settings: Any) -> dict[str, Any]:
    data = {"kind": "synthetic", "shape": SHAPE, "train": 400, "test": 50}
    return {
        "recipe": "scadles-weighted",
        "task": {"model": "mlp", "data": data, "options": {"hidden": [16]}},
        "fleet": {"devices": [{"name": "d", "count": 2, "flops": "2 GFLOP/s"}], "lease": 2.0},
        "stream": {"source": source, "buffer": "truncation"},
        "rounds": {"batching": {"kind": "stream", "low": 8, "high": 16}, "patience": "30 s", "retry": "500 ms"},
        "stop": {"rounds": 20},
        "checkpoint": 0,
        "evaluate": 0,
        **settings,
    }


def _own(name: str) -> dict[str, str]:
    return {"kind": "python", "generator": f"tests.live_streams.sensors:{name}"}


def _lost(folder: Path) -> dict[str, str]:
    """The devices that were lost, and why."""
    records = read_journal(folder / "journal.jsonl")
    return {
        record.node: record.fields["reason"]
        for record in records
        if isinstance(record, Instant) and record.name == "lost"
    }


@pytest.mark.parametrize(
    ("name", "words"), [("failing", "OSError: sensor unplugged"), ("ending", "the stream has ended")]
)
def test_a_device_whose_source_ends_leaves_with_a_reason_and_the_others_continue(
    tmp_path: Path, name: str, words: str
) -> None:
    group = f"d{os.getpid()}"  # the sensor processes know only their device's name
    broken = f"{group}-0"

    async def scenario(control: RunControl) -> None:
        end_marker(broken).touch()

    fleet = {"devices": [{"name": group, "count": 2, "flops": "2 GFLOP/s"}], "lease": 2.0}
    try:
        result = run_live(tmp_path / "run", scenario, **_job(_own(name), fleet=fleet))
    finally:
        end_marker(broken).unlink(missing_ok=True)
    assert result.status == "done", result.reason
    lost = _lost(tmp_path / "run")
    assert list(lost) == [broken]
    assert lost[broken].startswith("failed: DataError: ")
    assert words in lost[broken]


def test_an_unreadable_password_file_is_reported_to_the_coordinator(tmp_path: Path) -> None:
    """Nothing listens at the broker's address, so the device keeps reconnecting and reads the password each time."""
    password = tmp_path / "password"
    password.write_text("secret")

    async def scenario(control: RunControl) -> None:
        password.unlink()

    port = int(free_address().rpartition(":")[2])
    source = {"kind": "mqtt", "host": "127.0.0.1", "port": port, "password_file": str(password), "retry": "100 ms"}
    result = run_live(tmp_path / "run", scenario, **_job(source, rounds={"patience": "5 s"}))
    assert result.status == "failed"
    assert set(_lost(tmp_path / "run")) == {"d-0", "d-1"}
    assert all("password_file" in reason for reason in _lost(tmp_path / "run").values())


def _accounts(folder: Path) -> dict[str, dict[str, Any]]:
    """The last account of its stream that each device sent."""
    records = read_journal(folder / "journal.jsonl")
    return {
        record.node: record.fields for record in records if isinstance(record, Instant) and record.name == "account"
    }


def _account(counts: dict[str, Any]) -> SampleAccount:
    return SampleAccount(**{name: counts[name] for name in SampleAccount.__struct_fields__})


def test_every_sample_of_a_live_run_is_accounted_for_and_refused_ones_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_live(tmp_path / "run", **_job(_own("dirty")))
    assert result.status == "done", result.reason
    accounts = _accounts(tmp_path / "run")
    assert set(accounts) == {"d-0", "d-1"}
    for account in accounts.values():
        _account(account).check_balance()
    streamed, malformed = accounts["d-0"]["streamed"], accounts["d-0"]["malformed"]
    assert malformed == (streamed + malformed) // 4
    assert accounts["d-1"]["malformed"] == 0
    total = result.summary["streams"]
    _account(total).check_balance()
    assert total["streamed"] == sum(account["streamed"] for account in accounts.values())
    assert (total["malformed"], total["oversized"], total["late"], total["breaks"]) == (malformed, 0, 0, 0)
    assert total["trained"] >= result.summary["samples"] > 0, "a turn that was dropped at the end was taken, not merged"
    print_summary(result, None, 1.0, as_json=False, quiet=False)
    assert f"{total['streamed']:,} samples streamed in: " in (printed := capsys.readouterr().out)
    assert f"; records refused: {malformed:,} malformed\n" in printed


def test_samples_are_copied_between_processes_and_each_is_accounted_for(tmp_path: Path) -> None:
    """Half of the devices send half of their batch directly to all others."""
    stream = {
        "source": _own("steady"),
        "buffer": "value",
        "injection": {"kind": "broadcast", "alpha": 0.5, "beta": 0.5},
    }
    fleet = {"devices": [{"name": "d", "count": 3, "flops": "2 GFLOP/s"}], "lease": 2.0}
    result = run_live(tmp_path / "run", **_job({}, stream=stream, fleet=fleet))
    assert result.status == "done", result.reason
    accounts = _accounts(tmp_path / "run")
    for account in accounts.values():
        _account(account).check_balance()
    total = _account(result.summary["streams"])
    total.check_balance()
    assert 0 < total.received <= total.shared
    assert total.shared > 20 * 2 * 2 * 4 * 0.8, "two of three give four of eight samples to two others in every round"
    records = [record for record in read_journal(tmp_path / "run/journal.jsonl") if isinstance(record, Span)]
    gift_bytes = [record.fields["bytes"] for record in records if record.name == "give"]
    assert sum(gift_bytes) == total.shared * (math.prod(SHAPE) + 8), "a picture and its label each"
    assert sum(record.fields["samples"] for record in records if record.name == "compute") <= total.trained


@pytest.mark.skipif(MOSQUITTO is None, reason="needs mosquitto: apt-get install mosquitto")
def test_devices_continue_after_their_broker_restarts(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path)
    source = {"kind": "mqtt", "host": "127.0.0.1", "port": broker.port, "retry": "50 ms"}
    job = _job(source, stop={"rounds": 60})  # longer than the buffered samples last
    broker.start()
    publishers = [Publishing(broker.port, f"d-{index}", f"potluck/d-{index}") for index in range(2)]

    async def outage(control: RunControl) -> None:
        await asyncio.sleep(0.3)
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(broker.start)

    try:
        result = run_live(tmp_path / "run", outage, **job)
    finally:
        for publisher in publishers:
            publisher.end()
        broker.kill()
    assert result.status == "done", result.reason
    total = result.summary["streams"]
    _account(total).check_balance()
    assert total["trained"] >= result.summary["samples"] >= 60 * 2 * 8
    assert total["malformed"] > 0, "the sensors send rubbish now and then"
    assert total["breaks"] >= 2, "both felt the outage"

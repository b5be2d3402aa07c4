"""A lab whose devices read from a real MQTT broker, which is killed and restarted during the run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import potluck
from potluck.data.streams.mqtt_publisher import MqttPublisher, WallClock
from potluck.data.streams.sources import MqttSource, ReplayData
from potluck.job import Job, make
from potluck.journal import Scalar, Span, read_journal
from potluck.run.device_streams import stream_order
from potluck.run.rounds_setup import RoundsSetup
from potluck.run.run_store import RunStore
from tests.data.streams.brokers import MOSQUITTO, Mosquitto
from tests.time_limits import within

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="needs mosquitto: apt-get install mosquitto")

DEVICES = 4


def _job(port: int, rounds: int) -> Job:
    stream = {
        "source": {"kind": "mqtt", "host": "127.0.0.1", "port": port, "retry": "100 ms"},
        "rate": {"kind": "uniform", "mean": 200, "deviation": 70},
    }
    tables: dict[str, Any] = {
        "task": {"model": "mlp", "data": "digits", "options": {"hidden": [32]}},
        "fleet": {"devices": [{"name": "sensor", "count": DEVICES, "flops": "2 GFLOP/s", "link": "lan"}]},
        "recipe": "scadles",
        "stream": stream,
        "rounds": {
            "batching": {"kind": "stream", "window": "100 ms"},
            "scaling": {"kind": "linear", "base": 16},
            "schedule": {"kind": "cosine", "rounds": rounds},
            "retry": "500 ms",
        },
        "stop": {"rounds": rounds},
        "evaluate": 0,
        "checkpoint": 0,
    }
    return make(tables)


class Sensors(threading.Thread):
    """Publishes every device's shard at its rate until it is stopped."""

    def __init__(self, job: Job) -> None:
        super().__init__(name="sensors", daemon=True)
        self._job = job
        self._setup = RoundsSetup.from_job(job, None, None)
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self.publishers: list[MqttPublisher] = []

    def run(self) -> None:
        self._loop.run_until_complete(self._publish())

    async def _publish(self) -> None:
        self.publishers = [self._publisher(index) for index in range(DEVICES)]
        tasks = [asyncio.ensure_future(publisher.run()) for publisher in self.publishers]
        await self._over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _publisher(self, index: int) -> MqttPublisher:
        job, data = self._job, self._setup.data
        assert job.stream is not None
        assert data is not None
        assert isinstance(job.stream.source, MqttSource)
        name = f"sensor-{index}"
        order = stream_order(self._setup.shards[name], name, job.seed)
        replay = ReplayData(data.train, order, job.stream.rate.arrivals_of(index, job.seed))
        return MqttPublisher(job.stream.source.broker_address(), f"potluck/{name}", replay, WallClock())

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self.join(10)


@contextmanager
def _fed(job: Job, broker: Mosquitto) -> Iterator[Sensors]:
    broker.start()
    sensors = Sensors(job)
    sensors.start()
    try:
        yield sensors
    finally:
        sensors.end()
        broker.kill()


def _live(folder: Path, broker: Mosquitto, job: Job, outage_s: float) -> tuple[potluck.Result, Sensors]:
    """The broker is killed in the middle of the run and restarted a little later."""
    back = threading.Timer(outage_s, broker.start)

    class Outage(potluck.LiveObserver):
        def on_round(self, store: RunStore, now: float) -> None:
            if store.progress.round == job.stop.rounds // 2:  # type: ignore[operator]
                broker.kill()
                back.start()

    with _fed(job, broker) as sensors:
        result = potluck.lab(job, folder=folder, options=potluck.LabOptions(wait_s=60.0), observer=Outage())
        back.join()
    return result, sensors


@pytest.mark.long
@pytest.mark.parametrize(
    ("rounds", "outage_s", "points"), [(40, 0.8, 6.0), (300, 3.0, 1.0)], ids=["short", "converged"]
)
def test_with_a_broker_that_restarts_the_lab_learns_as_well_as_the_simulated_run(
    tmp_path: Path, rounds: int, outage_s: float, points: float
) -> None:
    broker = Mosquitto(tmp_path)
    job = _job(broker.port, rounds)
    with within(60 + rounds):
        live, sensors = _live(tmp_path / "run", broker, job, outage_s)
    simulated = potluck.simulate(job)
    assert live.status == "done", live.reason
    assert live.summary["rounds"] == rounds
    assert all(publisher.disconnects > 0 for publisher in sensors.publishers), "the outage was felt"
    assert 100 * abs(live.summary["accuracy"] - simulated.summary["accuracy"]) <= points
    _check_batches(tmp_path / "run", job)


def _check_batches(folder: Path, job: Job) -> None:
    """Devices measured their own rates, and a faster stream gave larger batches."""
    assert job.stream is not None
    rates = {f"sensor-{index}": job.stream.rate.nominal_rate(index, job.seed) for index in range(DEVICES)}
    sizes: dict[str, list[int]] = {name: [] for name in rates}
    for record in read_journal(folder / "journal.jsonl"):
        if isinstance(record, Span) and record.name == "compute":
            sizes[record.node].append(record.fields["samples"])
        assert not isinstance(record, Scalar) or record.name != "dropped" or record.value >= 0
    slow, fast = min(rates, key=rates.__getitem__), max(rates, key=rates.__getitem__)
    assert sum(sizes[fast]) > sum(sizes[slow])

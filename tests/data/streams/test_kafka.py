"""Against librdkafka's own mock cluster: real TCP and wire protocol, no broker to install."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import confluent_kafka
import numpy as np
import pytest

from potluck.data.buffers import Persistence
from potluck.data.streams import Expected, Inlet, LiveFeed, Sample, Store, pack, pour
from potluck.data.streams.publish import RealClock
from potluck.data.streams.sources import Kafka
from tests.time_limits import within


class _Cluster:
    """A producer that is its own cluster; others reach it at its brokers' addresses."""

    def __init__(self) -> None:
        self.producer = confluent_kafka.Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "mock"})
        brokers = self.producer.list_topics(timeout=10).brokers.values()
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def send(self, topic: str, *records: bytes) -> None:
        for record in records:
            self.producer.produce(topic, record)
        assert self.producer.flush(10) == 0


@pytest.fixture
def cluster() -> Iterator[_Cluster]:
    with within(30):
        yield _Cluster()


def _record(value: int) -> bytes:
    return pack(Sample(np.full(4, value, np.uint8), value % 10))


def test_records_come_in_and_bad_ones_are_counted(cluster: _Cluster) -> None:
    cluster.send("potluck.pi-0", *map(_record, range(20)), b"rubbish", bytes(5000), _record(20))
    cluster.send("potluck.pi-1", _record(99))
    inlet = Inlet("pi-0", Expected((4,), "u1", 10), RealClock())
    feed = LiveFeed(Persistence(), Store(), inlet.clock.now, 1000)

    async def main() -> None:
        source = Kafka(servers=cluster.servers)
        pouring = asyncio.create_task(pour(source.samples(inlet), feed))
        async with asyncio.timeout(20):
            while feed.account.streamed < 21:
                await asyncio.sleep(0.05)
            cluster.send("potluck.pi-0", *map(_record, range(21, 30)))
            while feed.account.streamed < 30:
                await asyncio.sleep(0.05)
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)

    asyncio.run(main())
    assert (inlet.refusals.malformed, inlet.refusals.oversized) == (1, 1)
    values = feed.samples.batch(feed.take(30, 0.0))[0][:, 0].tolist()
    assert sorted(values) == list(range(30))


def test_a_closed_source_leaves_no_thread_behind(cluster: _Cluster) -> None:
    cluster.send("potluck.pi-0", _record(1))
    inlet = Inlet("pi-0", Expected((4,), "u1", 10), RealClock())

    async def main() -> None:
        samples = Kafka(servers=cluster.servers).samples(inlet)
        async for _ in samples:
            break
        await samples.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name.startswith("kafka"):
            thread.join(10)
            assert not thread.is_alive()

"""Kafka sources against librdkafka's mock cluster: real TCP and wire protocol, no broker to install."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import confluent_kafka
import numpy as np
import pytest

from potluck.data.buffers import PersistencePolicy
from potluck.data.streams import LiveFeed, SampleSpec, SampleStore, StreamIngest, StreamSample, pack_record, run_source
from potluck.data.streams.mqtt_publisher import WallClock
from potluck.data.streams.sources import KafkaSource
from potluck.errors import SettingError
from tests.time_limits import within


class _Cluster:
    """A producer that runs its own mock cluster; consumers connect to its broker addresses."""

    def __init__(self) -> None:
        self.producer = confluent_kafka.Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "mock"})
        brokers = self.producer.list_topics(timeout=10).brokers.values()
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def send(self, topic: str, *records: bytes) -> None:
        for record in records:
            self.producer.produce(topic, record)
        assert self.producer.flush(10) == 0

    def vanish(self) -> None:
        del self.producer


def _record(value: int) -> bytes:
    return pack_record(StreamSample(np.full(4, value, np.uint8), value % 10))


def test_records_arrive_bad_ones_are_counted_and_a_lost_cluster_does_not_block_closing() -> None:
    """A close that commits its offset would wait up to a minute for a lost cluster."""
    cluster = _Cluster()
    cluster.send("potluck.pi-0", *map(_record, range(20)), b"rubbish", bytes(5000), _record(20))
    cluster.send("potluck.pi-1", _record(99))
    inlet = StreamIngest("pi-0", SampleSpec.labelled((4,), "u1", 10), WallClock())
    feed = LiveFeed(PersistencePolicy(), SampleStore(), inlet.clock.now, 1000)

    async def main() -> None:
        source = KafkaSource(servers=cluster.servers)
        pouring = asyncio.create_task(run_source(source.samples(inlet), feed))
        await _until(lambda: feed.account.streamed == 21)
        cluster.send("potluck.pi-0", *map(_record, range(21, 30)))
        await _until(lambda: feed.account.streamed == 30)
        cluster.vanish()
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)

    with within(30):
        asyncio.run(main())
        for thread in threading.enumerate():
            if thread.name.startswith("kafka"):
                thread.join()
    assert (inlet.refusals.malformed, inlet.refusals.oversized) == (1, 1)
    values = feed.samples.batch(feed.take_samples(30, 0.0))[0][:, 0].tolist()
    assert sorted(values) == list(range(30))


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not true():
            await asyncio.sleep(0.05)


def test_options_unknown_to_kafka_are_refused_with_its_message() -> None:
    inlet = StreamIngest("pi-0", SampleSpec.labelled((4,), "u1", 10), WallClock())
    source = KafkaSource(servers="127.0.0.1:1", options={"no.such.option": 1})
    with pytest.raises(SettingError, match=r'stream\.source\.options: .*"no\.such\.option"'):
        asyncio.run(
            run_source(source.samples(inlet), LiveFeed(PersistencePolicy(), SampleStore(), inlet.clock.now, 10))
        )

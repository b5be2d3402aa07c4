"""MQTT sources against a real mosquitto that the tests start, kill and restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiomqtt
import numpy as np
import pytest
import torch

from potluck import seeds
from potluck.data import Samples
from potluck.data.buffers import PersistencePolicy
from potluck.data.streams import (
    LiveFeed,
    ReplayData,
    ReplayOrder,
    SampleSpec,
    SampleStore,
    StreamIngest,
    StreamSample,
    pack_record,
    run_source,
)
from potluck.data.streams.mqtt_publisher import MqttPublisher, WallClock
from potluck.data.streams.sources import MqttSource, StreamSource
from potluck.data.streams.stream_rates import ConstantRate
from potluck.settings import decode_settings
from potluck.units import Seconds
from tests.data.streams.brokers import MOSQUITTO, Mosquitto
from tests.time_limits import within

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="needs mosquitto: apt-get install mosquitto")
_EXPECTED = SampleSpec.labelled((4,), "u1", 10)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path)
    broker.start()
    try:
        with within(30):
            yield broker
    finally:
        broker.kill()


def _source(broker: Mosquitto) -> MqttSource:
    return MqttSource(host="127.0.0.1", port=broker.port, retry=Seconds(0.05))


def _inlet(device: str = "pi-0") -> StreamIngest:
    return StreamIngest(device, _EXPECTED, WallClock())


def _stock(per_second: float) -> ReplayData:
    samples = Samples(torch.arange(40, dtype=torch.uint8).view(10, 4), torch.arange(10))
    order = ReplayOrder(np.arange(10), lambda number: seeds.child_generator(0, number))
    return ReplayData(samples, order, ConstantRate(per_second=per_second).arrivals_of(0, 0))


def _publisher(broker: Mosquitto, per_second: float, device: str = "pi-0") -> MqttPublisher:
    return MqttPublisher(_source(broker).broker_address(), f"potluck/{device}", _stock(per_second), WallClock())


@asynccontextmanager
async def _running(source: MqttSource, inlet: StreamIngest) -> AsyncIterator[LiveFeed]:
    """A feed that a broker fills while the context is open; subscribed on entry."""
    feed = LiveFeed(PersistencePolicy(), SampleStore(), inlet.clock.now, 10_000)
    pouring = asyncio.create_task(run_source(source.samples(inlet), feed))
    await asyncio.sleep(0.3)
    try:
        yield feed
    finally:
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not true():
            await asyncio.sleep(0.02)


def test_exactly_the_published_records_arrive_in_order(broker: Mosquitto) -> None:
    async def main() -> None:
        async with _running(_source(broker), _inlet()) as feed, asyncio.TaskGroup() as group:
            group.create_task(_publisher(broker, 400.0).run(60))
            group.create_task(_publisher(broker, 400.0, "pi-1").run(20))
            await _until(lambda: feed.account.streamed >= 60)
            taken = feed.take_samples(60, 0.0)
            stock = _stock(400.0)
            expected = stock.samples.batch(stock.order.sample_ids(np.arange(60)))
            torch.testing.assert_close(feed.samples.batch(taken), expected)
        assert feed.account.streamed == 60, "another device's topic is not ours"

    asyncio.run(main())


def test_bad_records_are_counted_and_dropped(broker: Mosquitto) -> None:
    good = pack_record(StreamSample(np.zeros(4, np.uint8), 3))

    async def main() -> None:
        inlet = _inlet()
        async with _running(_source(broker), inlet) as feed:
            async with aiomqtt.Client("127.0.0.1", broker.port) as client:
                for record in (good, b"rubbish", bytes(5000), b"", good):
                    await client.publish("potluck/pi-0", record, qos=1)
            await _until(lambda: feed.account.streamed == 2)
        assert (inlet.refusals.malformed, inlet.refusals.oversized) == (2, 1)

    asyncio.run(main())


def test_a_restarted_broker_is_reconnected(broker: Mosquitto) -> None:
    async def main() -> None:
        inlet = _inlet()
        async with _running(_source(broker), inlet) as feed:
            publishing = asyncio.create_task((publisher := _publisher(broker, 200.0)).run())
            await _until(lambda: feed.account.streamed > 20)
            broker.kill()
            await _until(lambda: inlet.disconnects > 1 and publisher.disconnects > 0)
            before = feed.account.streamed
            broker.start()
            await _until(lambda: feed.account.streamed > before + 50)
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
        feed.account.check_balance()

    asyncio.run(main())


def test_the_broker_keeps_records_for_a_disconnected_device(broker: Mosquitto) -> None:
    async def main() -> None:
        async with _running(_source(broker), _inlet()):
            pass
        await _publisher(broker, 1000.0).run(30)
        async with _running(_source(broker), _inlet()) as feed:
            await _until(lambda: feed.account.streamed == 30)

    asyncio.run(main())


def test_a_missing_broker_is_waited_for(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path)

    async def main() -> None:
        async with _running(_source(broker), _inlet()) as feed:
            broker.start()
            await asyncio.wait_for(_publisher(broker, 200.0).run(20), 10)
            await _until(lambda: feed.account.streamed > 0)

    try:
        with within(30):
            asyncio.run(main())
    finally:
        broker.kill()


def test_a_source_can_be_decoded_from_settings() -> None:
    source = decode_settings({"kind": "mqtt", "host": "broker.local", "topic": "plant/{device}/camera"}, StreamSource)
    assert source == MqttSource(host="broker.local", topic="plant/{device}/camera")

"""Acts as the sensors of examples/streams: sends each device its shard of the digits over MQTT, at the job's rates."""

import asyncio
import sys
from pathlib import Path

from potluck.data.streams.mqtt_publisher import MqttPublisher, WallClock
from potluck.data.streams.sources import MqttSource, ReplayData
from potluck.job import load_job
from potluck.run.device_streams import stream_order
from potluck.run.rounds_setup import RoundsSetup


async def main(port: int, seconds: float) -> None:
    job = load_job(Path(__file__).parent / "job.toml")
    setup, broker, clock = RoundsSetup.from_job(job, None, None), MqttSource(port=port).broker_address(), WallClock()
    assert job.stream is not None
    assert setup.data is not None
    publishers = []
    for index, device in enumerate(job.fleet.members):
        order = stream_order(setup.shards[device.name], device.name, job.seed)
        replay = ReplayData(setup.data.train, order, job.stream.rate.arrivals_of(index, job.seed))
        publishers.append(MqttPublisher(broker, f"potluck/{device.name}", replay, clock))
    try:
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for publisher in publishers:
                group.create_task(publisher.run())
    except TimeoutError:
        print("sent", sum(publisher.sent for publisher in publishers), "records")


if __name__ == "__main__":
    words = sys.argv[1:]
    asyncio.run(main(int(words[0]) if words else 1883, float(words[1]) if len(words) > 1 else 600.0))

"""Plays the sensors of examples/streams: sends each device its share of the digits over MQTT, at the job's rates."""

import asyncio
import sys
from pathlib import Path

from potluck.data.streams.opening import ordered
from potluck.data.streams.publish import Publisher, RealClock
from potluck.data.streams.sources import Mqtt, Stock
from potluck.job import load
from potluck.run.setup import Setup


async def main(port: int, seconds: float) -> None:
    job = load(Path(__file__).parent / "job.toml")
    setup, broker, clock = Setup.of(job, None, None), Mqtt(port=port).broker(), RealClock()
    assert job.stream is not None
    assert setup.data is not None
    publishers = []
    for place, device in enumerate(job.fleet.members):
        order = ordered(setup.shards[device.name], device.name, job.seed)
        stock = Stock(setup.data.train, order, job.stream.rate.arrivals(place, job.seed))
        publishers.append(Publisher(broker, f"potluck/{device.name}", stock, clock))
    try:
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for publisher in publishers:
                group.create_task(publisher.run())
    except TimeoutError:
        print("sent", sum(publisher.sent for publisher in publishers), "records")


if __name__ == "__main__":
    words = sys.argv[1:]
    asyncio.run(main(int(words[0]) if words else 1883, float(words[1]) if len(words) > 1 else 600.0))

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path

import pytest

from tests.data.streams.brokers import MOSQUITTO, Mosquitto
from tests.time_limits import within

SCRIPT = Path(__file__).parents[2] / "examples/streams/sensors.py"


@pytest.mark.skipif(MOSQUITTO is None, reason="needs mosquitto: apt-get install mosquitto")
def test_the_example_sensors_publish_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broker = Mosquitto(tmp_path)
    broker.start()
    try:
        with within(30):
            asyncio.run(runpy.run_path(str(SCRIPT))["main"](broker.port, 1.0))
    finally:
        broker.kill()
    assert int(capsys.readouterr().out.split()[1]) > 10

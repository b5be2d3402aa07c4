"""What a job comes to, in a form that can be compared: a run, its folder, its data, its model, its live stream."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import potluck
from potluck.data import load
from potluck.data.streams import ReplayData, StreamSample, pack_record, run_source
from potluck.data.streams.sources import kafka_source, mqtt_source
from potluck.errors import DataError
from potluck.job import Job, make
from potluck.run.device_streams import LiveStream, open_live_stream, stream_order
from potluck.task import TaskSettings, build_seeded
from tests.every_setting.small_jobs import Tables

__all__ = ["loaded_data", "model_built", "run_outcome", "saved_outcome", "stream_calls", "stream_contents"]

# What a summary copies from the job, and what is measured by a real clock.
_COPIED = ("name", "recipe", "seed", "wall_s")


def run_outcome(job: Tables) -> Any:
    """What a simulated run in memory comes to: its summary, scalars and weights."""
    result = potluck.simulate(job, threads=0)
    summary = {key: value for key, value in result.summary.items() if key not in _COPIED}
    weights = [] if result.module is None else [tensor.tolist() for tensor in result.module.state_dict().values()]
    return repr((summary, list(result.scalars), weights))


def saved_outcome(job: Tables, folder: Path) -> dict[str, str]:
    """What a simulated run leaves in its folder, beside the job itself: journal, checkpoints, models, its title."""
    summary = potluck.simulate(job, folder=folder, threads=0).summary
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [str(path.relative_to(folder)) for path in files]
    hashes = {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in zip(names, files, strict=True)
        if path.name in ("journal.jsonl", "best.safetensors", "model.safetensors")
    }
    return {**dict.fromkeys(names, ""), **hashes, "title": summary["name"]}


def loaded_data(job: Tables) -> Any:
    """The samples of the job's data set."""
    data = load(_task(make(job)).data, Path.cwd())
    samples = [part.batch(np.arange(len(part))) for part in (data.train, data.test)]
    return repr([(x.tolist(), y.tolist()) for x, y in samples]), repr(data.train.owner), data.classes, data.vocabulary


def model_built(job: Tables) -> Any:
    """The job's initial model: its modules and its weights."""
    task = _task(make(job))
    module = build_seeded(task.model_factory((8,), 3, 20), 0, "the model")
    scalings = [getattr(layer, "scaling", None) for layer in module.modules()]
    return repr(module), scalings, repr([value.tolist() for value in module.state_dict().values()])


def _task(job: Job) -> TaskSettings:
    assert isinstance(job.task, TaskSettings)
    return job.task


# --- live streams -------------------------------------------------------------------------------------------------


class _StopClock:
    """A clock that advances only during sleeps, notes them, and ends the test at the second one."""

    def __init__(self) -> None:
        self.sleeps: list[float] = []

    def now(self) -> float:
        return sum(self.sleeps)

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        if len(self.sleeps) > 1:
            raise TimeoutError


def _open_stream(job: Tables, clock: _StopClock) -> LiveStream:
    """The stream of the job's first device in a live run."""
    made = make(job)
    assert made.stream is not None
    data = load(_task(made).data)
    order = stream_order(np.arange(len(data.train)), "slow", made.seed)
    replay = ReplayData(data.train, order, made.stream.rate.arrivals_of(0, made.seed))
    return open_live_stream(made.stream, data, "slow", replay, clock)


def stream_calls(job: Tables) -> Any:
    """What a live stream asks of the libraries that connect to brokers, until it has tried twice."""
    calls: list[Any] = []
    clock, mqtt, kafka = _StopClock(), _fake_aiomqtt(calls.append), _fake_kafka(calls.append)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mqtt_source, "_import_aiomqtt", lambda: mqtt)
        patch.setattr(mqtt_source, "_connect_properties", lambda *_: None)
        patch.setattr(kafka_source, "_import_confluent_kafka", lambda: kafka)
        live = _open_stream(job, clock)
        with pytest.raises(TimeoutError):
            asyncio.run(run_source(live.samples, live.feed))
    return repr(calls), clock.sleeps


def stream_contents(job: Tables) -> Any:
    """What a live device keeps: of its source, and of records that are one minute old."""
    live = _open_stream(job, _StopClock())
    live.ingest.wall_clock = lambda: 60.0
    for label in range(3):
        record = pack_record(StreamSample(np.zeros((1, 4, 4), np.uint8), label, time=0.0))
        if (sample := live.ingest.read_record(record)) is not None:
            live.feed.put_sample(sample)
    asyncio.run(_run_briefly(live))
    account = live.feed.account
    held = live.feed.take_samples(account.buffered, 0.0)
    inputs = live.feed.samples.batch(held)[0].tolist() if len(held) else []
    return repr((account, live.ingest.refusals, inputs))


async def _run_briefly(live: LiveStream) -> None:
    with contextlib.suppress(TimeoutError, DataError):  # DataError: the source has ended
        await run_source(live.samples, live.feed)


def _fake_aiomqtt(note: Callable[[Any], None]) -> Any:
    class MqttError(Exception):
        pass

    class Client:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            note((arguments, options))

        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *error: object) -> None: ...

        async def subscribe(self, topic: str, qos: int) -> None:
            note(topic)
            raise MqttError("no broker")

    versions = SimpleNamespace(V5=5)
    return SimpleNamespace(MqttError=MqttError, Client=Client, ProtocolVersion=versions, TLSParameters=lambda: "TLS")


def _fake_kafka(note: Callable[[Any], None]) -> Any:
    fatal = SimpleNamespace(error=lambda: SimpleNamespace(fatal=lambda: True))

    class Consumer:
        def __init__(self, options: dict[str, Any], logger: object) -> None:
            note(sorted(options.items()))

        def subscribe(self, topics: list[str]) -> None:
            note(topics)

        def consume(self, *_: object) -> list[Any]:
            return [fatal]

        def close(self) -> None: ...

    return SimpleNamespace(Consumer=Consumer, KafkaException=OSError)

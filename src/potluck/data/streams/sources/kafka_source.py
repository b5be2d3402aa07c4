"""Kafka source: one topic per device; librdkafka reconnects by itself, with back-off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Annotated, Any

import msgspec

from potluck.data.streams.sources.stream_source import StreamIngest, StreamSource, backoff_pauses, device_topic
from potluck.data.streams.stream_records import StreamSample
from potluck.errors import DataError, SettingError
from potluck.settings import doc
from potluck.units import Seconds

__all__ = ["KafkaSource"]

_AT_ONCE = 256  # records
_WAIT_S = 0.2  # for the first of them; as long may it take until the source is closed

_log = logging.getLogger("potluck")


class KafkaSource(StreamSource, frozen=True, kw_only=True, tag="kafka"):
    """Records from a Kafka cluster."""

    servers: Annotated[str, doc("Addresses of the brokers, separated by commas.")] = "localhost:9092"
    topic: Annotated[str, doc("Topic to read; `{device}` stands for the device's name.")] = "potluck.{device}"
    group: Annotated[str, doc("Consumer group; `{device}` stands for the device's name.")] = "potluck.{device}"
    retry: Annotated[Seconds, doc("Time until a failed consumer is replaced; doubles each time, up to 30 s.")] = (
        Seconds(0.5)
    )
    options: Annotated[dict[str, str | int | float | bool], doc("Options of librdkafka (TLS, SASL, …).")] = (
        msgspec.field(default_factory=dict)
    )

    async def samples(self, ingest: StreamIngest) -> AsyncIterator[StreamSample]:
        waits = backoff_pauses(self.retry)
        while True:
            async with aclosing(self._consume_records(ingest)) as records:
                async for record in records:
                    waits = backoff_pauses(self.retry)
                    sample = ingest.read_record(record)
                    if sample is not None:
                        yield sample
            wait = ingest.count_disconnect(waits)
            _log.warning("the consumer of %s failed for good; a new one is made in %g s", self.servers, wait)
            await ingest.clock.sleep(wait)

    async def _consume_records(self, ingest: StreamIngest) -> AsyncGenerator[bytes | None, None]:
        """What one consumer gets until it fails for good; it runs in its own thread, which also closes it."""
        consumer, loop = self._make_consumer(ingest), asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, "kafka")
        try:
            consumer.subscribe([device_topic(self.topic, ingest.device)])
            while True:
                messages = await loop.run_in_executor(thread, consumer.consume, _AT_ONCE, _WAIT_S)
                for message in messages:
                    error = message.error()
                    if error is None:
                        yield message.value()
                    elif error.fatal():
                        return
                if any(message.error() is None for message in messages):
                    consumer.commit(asynchronous=True)
        finally:
            thread.submit(consumer.close)
            thread.shutdown(wait=False)

    def _make_consumer(self, ingest: StreamIngest) -> Any:
        most = 64 * ingest.expected.max_record_bytes
        library, options = _import_confluent_kafka(), {
            "bootstrap.servers": self.servers,
            "group.id": device_topic(self.group, ingest.device),
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": max(most, 1_000_000),
            "queued.max.messages.kbytes": max(most // 250, 4_096),
            # Committed as we go: a close that commits would wait for a cluster that is gone.
            "enable.auto.commit": False,
            **self.options,
        }  # fmt: skip
        try:
            return library.Consumer(options, logger=_log)
        except library.KafkaException as error:
            raise SettingError("stream.source.options", f"Kafka refuses them: {error.args[0].str()}") from None


def _import_confluent_kafka() -> Any:
    try:
        import confluent_kafka
    except ImportError:
        raise DataError(
            "a stream from Kafka needs the package confluent-kafka: pip install 'potluck[streams]'"
        ) from None
    return confluent_kafka

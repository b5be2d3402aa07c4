"""MQTT source: one topic per device, at-least-once delivery, reconnects after any broker outage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from potluck.data.streams.sources.stream_source import StreamIngest, StreamSource, backoff_pauses, device_topic
from potluck.data.streams.stream_records import StreamSample
from potluck.errors import DataError, SettingError
from potluck.settings import doc
from potluck.units import Seconds

if TYPE_CHECKING:
    import aiomqtt

__all__ = ["MqttBroker", "MqttSource", "raise_if_cancelled"]

_SESSION_S = 3600  # how long the broker keeps records for a disconnected device
_GOODBYE_S = 1.0  # timeout of an orderly disconnect
_QUEUED = 10_000  # bound of the client's receive queue, which is drained immediately

_log = logging.getLogger("potluck")


class MqttBroker(msgspec.Struct, frozen=True, kw_only=True):
    """Connection settings of an MQTT broker."""

    host: str
    port: int
    username: str | None = None
    password_file: str | None = None
    tls: bool = False

    @asynccontextmanager
    async def open_client(self, identifier: str, most_bytes: int, kept_s: int) -> AsyncGenerator[aiomqtt.Client, None]:
        """Open a connection; MqttError if it cannot be made or breaks.

        The exception that ends the block is propagated as it is: aiomqtt's own exit may fail on a dead connection, and
        its error instead of a cancellation would keep a cancelled task alive.
        """
        client = self._make_client(identifier, most_bytes, kept_s)
        await client.__aenter__()
        try:
            yield client
        finally:
            with suppress(_import_aiomqtt().MqttError, TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await client.__aexit__(None, None, None)

    def _make_client(self, identifier: str, most_bytes: int, kept_s: int) -> aiomqtt.Client:
        aiomqtt = _import_aiomqtt()
        return aiomqtt.Client(  # type: ignore[no-any-return]
            self.host,
            self.port,
            identifier=identifier,
            protocol=aiomqtt.ProtocolVersion.V5,
            username=self.username,
            password=self._read_password(),
            tls_params=aiomqtt.TLSParameters() if self.tls else None,
            clean_start=not kept_s,
            keepalive=10,
            timeout=10.0,
            max_queued_incoming_messages=_QUEUED,
            properties=_connect_properties(most_bytes, kept_s),
        )

    def _read_password(self) -> str | None:
        if self.password_file is None:
            return None
        try:
            return Path(self.password_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise SettingError("stream.source.password_file", f"cannot read it: {reason}") from None


class MqttSource(StreamSource, frozen=True, kw_only=True, tag="mqtt"):
    """Records from an MQTT broker."""

    host: Annotated[str, doc("Host name or address of the broker.")] = "localhost"
    port: Annotated[int, msgspec.Meta(ge=1, le=65535), doc("TCP port of the broker.")] = 1883
    topic: Annotated[str, doc("Topic to subscribe to; `{device}` stands for the device's name.")] = "potluck/{device}"
    username: Annotated[str | None, doc("User name for the broker.")] = None
    password_file: Annotated[str | None, doc("File that holds the password.")] = None
    tls: Annotated[bool, doc("Connect with TLS.")] = False
    retry: Annotated[Seconds, doc("Time until a lost broker is tried again; doubles each time, up to 30 s.")] = Seconds(
        0.5
    )

    def broker_address(self) -> MqttBroker:
        return MqttBroker(
            host=self.host, port=self.port, username=self.username, password_file=self.password_file, tls=self.tls
        )

    async def samples(self, ingest: StreamIngest) -> AsyncIterator[StreamSample]:
        aiomqtt, waits = _import_aiomqtt(), backoff_pauses(self.retry)
        while True:
            reason = "the broker closed the connection"
            try:
                async with aclosing(self._receive_records(ingest)) as records:
                    async for record in records:
                        waits = backoff_pauses(self.retry)
                        sample = ingest.read_record(record)
                        if sample is not None:
                            yield sample
            except aiomqtt.MqttError as error:
                reason = str(error)
            wait = ingest.count_disconnect(waits)
            _log.warning("no stream from %s:%d: %s; trying again in %g s", self.host, self.port, reason, wait)
            await ingest.clock.sleep(wait)

    async def _receive_records(self, ingest: StreamIngest) -> AsyncGenerator[bytes, None]:
        """Yield the records of one connection."""
        # Far above the size of a valid record, so that invalid ones are counted instead of held back by the broker.
        most = 64 * ingest.expected.max_record_bytes
        async with self.broker_address().open_client(f"potluck-{ingest.device}", most, _SESSION_S) as client:
            await client.subscribe(device_topic(self.topic, ingest.device), qos=1)
            raise_if_cancelled()
            async for message in client.messages:
                yield message.payload if isinstance(message.payload, bytes) else b""


def raise_if_cancelled() -> None:
    """Call after aiomqtt calls: before Python 3.12 `wait_for` may lose a cancellation that comes with a result."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _connect_properties(most_bytes: int, kept_s: int) -> Any:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.MaximumPacketSize = most_bytes
    properties.SessionExpiryInterval = kept_s
    return properties


def _import_aiomqtt() -> Any:
    try:
        import aiomqtt
    except ImportError:
        raise DataError("a stream from MQTT needs the package aiomqtt: pip install 'potluck[streams]'") from None
    return aiomqtt

"""A stream of the user's own: an async generator that both sides have installed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import numpy as np

from potluck.data.streams.sources.stream_source import StreamIngest, StreamSource
from potluck.data.streams.stream_records import StreamSample
from potluck.errors import DataError
from potluck.settings import doc, load_object

__all__ = ["PythonSource"]


class PythonSource(StreamSource, frozen=True, kw_only=True, tag="python"):
    """Samples from your own asynchronous generator."""

    generator: Annotated[str, doc("`package.module:function`, called with the device's name; yields (input, label).")]

    async def samples(self, ingest: StreamIngest) -> AsyncIterator[StreamSample]:
        function = load_object(self.generator, "stream.source.generator")
        made: Any = None
        try:
            made = function(ingest.device)
            if not hasattr(made, "__aiter__"):
                raise DataError(f"stream.source.generator: {self.generator!r} must be an `async def` that yields")
            async for given in made:
                sample = ingest.check_sample(_to_sample(given))
                if sample is not None:
                    yield sample
        except DataError:
            raise
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            raise DataError(f"stream.source.generator: {self.generator!r} failed: {words}") from error
        finally:
            if hasattr(made, "aclose"):
                await made.aclose()


def _to_sample(given: Any) -> StreamSample:
    """What it yielded, as far as it is a pair; anything else becomes a sample that cannot fit."""
    try:
        x, y = given
        return StreamSample(np.asarray(x), int(y))
    except (TypeError, ValueError, RuntimeError):
        return StreamSample(np.zeros(0), -1)

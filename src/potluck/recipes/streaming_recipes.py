"""The recipes for data that streams in: ScaDLES, its baseline, each of its parts alone, and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from potluck.loops.parts import stream_batching as stream_batching  # declares its parts

__all__ = ["COMPRESSION", "DDL", "INJECTION", "PLUS", "SCADLES", "TRUNCATION", "WEIGHTED"]

_SERVER = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}
_FIXED = {"local": "gradient", "server": _SERVER, "batching": {"kind": "fixed", "size": 64}, "merge": "mean"}
_FOLLOWING = {"local": "gradient", "server": _SERVER, "batching": "stream", "scaling": "linear", "merge": "samples"}
_ADAPTIVE = {"kind": "adaptive", "ratio": 0.1, "delta": 0.3}


def _streaming_recipe(rounds: Mapping[str, Any], buffer: str | Mapping[str, str], **stream: Any) -> Mapping[str, Any]:
    return {"rounds": rounds, "stream": {"buffer": buffer, **stream}}


DDL = _streaming_recipe(_FIXED, "persistence")
SCADLES = _streaming_recipe({**_FOLLOWING, "codec": _ADAPTIVE}, "truncation")
WEIGHTED = _streaming_recipe(_FOLLOWING, "persistence")
TRUNCATION = _streaming_recipe(_FIXED, "truncation")
COMPRESSION = _streaming_recipe({**_FIXED, "codec": _ADAPTIVE}, "persistence")
INJECTION = _streaming_recipe({**_FOLLOWING, "codec": _ADAPTIVE}, "truncation", injection={"alpha": 0.25, "beta": 0.25})
PLUS = _streaming_recipe(
    {
        **_FOLLOWING,
        # No more than a device works off, so that fast streams do not make slow rounds; a batch that is larger than
        # 512 all the same is accumulated, so that it takes no more memory.
        "batching": {"kind": "line-rate", "cap": 512},
        "scaling": {"kind": "capped", "most": 2.0, "warmup": 50},
        "transfer": "optimal",
    },
    {"kind": "value", "worth": "same"},
)

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load, save

from potluck.errors import SettingError
from potluck.model.codecs import Codec, CodecState, GradedCodec, SparseCodec, TopKCodec
from potluck.settings import decode_settings, encode_settings
from tests.model.codecs.vectors import CODECS, SPARSE


@pytest.mark.parametrize("codec", SPARSE, ids=str)
def test_a_device_continues_from_its_saved_state(codec: SparseCodec) -> None:
    rng = torch.Generator().manual_seed(9)
    memory = codec.new_state()
    if memory is None:
        assert not codec.error_feedback
        return
    for at in (slice(0, 30), slice(30, 50)):
        codec.encode(torch.randn(at.stop - at.start, generator=rng), memory, at)
    restored = CodecState.from_tensors(load(save(memory.to_tensors())))
    vector = torch.randn(50, generator=rng)
    ours, theirs = (codec.encode(vector, state, slice(0, 50)) for state in (memory, restored))
    assert all((array == other).all() for array, other in zip(ours.arrays, theirs.arrays, strict=True))
    assert (restored.averages, restored.compressed, restored.whole) == (
        memory.averages,
        memory.compressed,
        memory.whole,
    )


def test_a_saved_codec_state_does_not_change() -> None:
    codec, memory = TopKCodec(ratio=0.5), CodecState()
    codec.encode(torch.tensor([2.0, 1.0]), memory)
    saved = memory.to_tensors()
    codec.encode(torch.tensor([2.0, 1.0]), memory)
    assert saved["residual"].tolist() == [0, 1]


def test_a_new_state_has_no_compression_history() -> None:
    assert CodecState().compressed_fraction == 0
    assert CodecState.from_tensors(CodecState().to_tensors()) == CodecState()


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_codec_survives_encoding_and_decoding(codec: Codec) -> None:
    assert decode_settings(encode_settings(codec), Codec) == codec


def test_a_wrong_ratio_is_named() -> None:
    with pytest.raises(SettingError, match=r"rounds\.codec\.ratio"):
        decode_settings({"kind": "top-k", "ratio": 2}, Codec, "rounds.codec")
    with pytest.raises(SettingError, match=r"rounds\.codec"):
        decode_settings({"kind": "graded", "ratios": []}, Codec, "rounds.codec")
    assert decode_settings({"kind": "graded", "ratios": [0.01, 1]}, Codec) == GradedCodec(ratios=(0.01, 1.0))

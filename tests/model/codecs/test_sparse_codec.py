from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from potluck.errors import SettingError
from potluck.loops.settings import Rounds
from potluck.model.codecs import AdaptiveCodec, CodecState, GradedCodec, SparseCodec, TopKCodec
from potluck.model.codecs.value_coding import ValueFormat
from potluck.settings import decode_settings
from tests.model.codecs.vectors import SPARSE, vectors


def _sent(codec: SparseCodec, vector: Tensor, memory: CodecState | None = None, at: slice | None = None) -> Tensor:
    payload = codec.encode(vector, memory, at or slice(0, len(vector)))
    assert codec.payload_refusal(payload, len(vector)) is None
    return codec.decode(payload, len(vector))


def _bits(vector: Tensor) -> list[int]:
    return (vector + 0.0).view(torch.int32).tolist()  # treats both zeros as equal


@pytest.mark.parametrize("codec", SPARSE, ids=str)
@settings(deadline=None, max_examples=30)
@given(vector=vectors)
def test_sent_values_equal_the_original_values(codec: SparseCodec, vector: Tensor) -> None:
    payload = codec.encode(vector, codec.new_state())
    decoded = codec.decode(payload, len(vector))
    nonzero = decoded != 0
    assert payload.nbytes == sum(array.nbytes for array in payload.arrays)
    if codec.values == "f32":
        assert torch.equal(decoded[nonzero], vector[nonzero])
    elif codec.values == "f16":
        expected = vector[nonzero].clamp(-65504, 65504)
        torch.testing.assert_close(decoded[nonzero], expected, rtol=1e-3, atol=6e-8)


@pytest.mark.parametrize(
    "codec", [codec for codec in SPARSE if codec.error_feedback and codec.values == "f32"], ids=str
)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_sent_and_remaining_values_sum_exactly_to_the_gradient(codec: SparseCodec, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 40))
    values = st.lists(st.floats(-1e6, 1e6, width=32), min_size=size, max_size=size)
    memory = codec.new_state()
    assert memory is not None
    velocity = torch.zeros(size)
    for _ in range(4):
        before = torch.zeros(size) if memory.residual is None else memory.residual.clone()
        gradient = torch.tensor(data.draw(values), dtype=torch.float32)
        velocity = gradient.add(velocity, alpha=codec.momentum)
        sent = _sent(codec, gradient, memory)
        assert memory.residual is not None
        assert _bits(sent + memory.residual) == _bits(before + velocity)
        assert bool(((sent == 0) | (memory.residual == 0)).all())
        velocity = torch.zeros(size) if memory.velocity is None else memory.velocity.clone()


@settings(deadline=None)
@given(values=st.lists(st.floats(-6e4, 6e4, width=32), max_size=40))
def test_fp16_rounding_errors_are_kept_for_later(values: list[float]) -> None:
    codec, memory = TopKCodec(ratio=0.4, values="f16"), CodecState()
    vector = torch.tensor(values, dtype=torch.float32)
    sent = _sent(codec, vector, memory)
    assert memory.residual is not None
    assert _bits(sent + memory.residual) == _bits(vector)


def test_signs_are_sent_with_the_mean_magnitude() -> None:
    codec, memory = TopKCodec(ratio=0.5, values="sign"), CodecState()
    assert _sent(codec, torch.tensor([4.0, -2.0, 1.0, 0.5]), memory).tolist() == [3, -3, 0, 0]
    assert memory.residual is not None
    assert memory.residual.tolist() == [1, 1, 1, 0.5]


def test_signs_of_one_in_25_are_100_times_less() -> None:
    codec = TopKCodec(ratio=0.04, values="sign")
    payload = codec.encode(torch.randn(100_000, generator=torch.Generator().manual_seed(0)), CodecState())
    assert payload.nbytes == codec.encoded_bytes(100_000, 4)
    assert 400_000 / payload.nbytes > 100


@pytest.mark.parametrize("form", ["f16", "sign"])
def test_every_value_is_sent_eventually(form: ValueFormat) -> None:
    codec, memory = TopKCodec(ratio=0.1, values=form), CodecState()
    vector = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    total = _sent(codec, vector, memory)
    for _ in range(150):
        total += _sent(codec, torch.zeros(1000), memory)
    torch.testing.assert_close(total, vector, rtol=0, atol=1e-6 if form == "f16" else 1e-3)


def test_each_segment_has_its_own_error_feedback() -> None:
    codec, memory = TopKCodec(ratio=0.5), CodecState()
    vector = torch.tensor([4.0, 1.0, 3.0, 2.0, 8.0, 7.0])
    later = slice(2, 6)
    assert _sent(codec, vector[later], memory, later).tolist() == [0, 0, 8, 7]
    assert _sent(codec, vector[:2], memory, slice(0, 2)).tolist() == [4, 0]
    assert memory.residual is not None
    assert memory.residual.tolist() == [0, 1, 3, 2, 0, 0]
    assert _sent(codec, torch.zeros(4), memory, slice(1, 5)).tolist() == [0, 3, 2, 0]  # the cuts may move


@pytest.mark.parametrize("codec", SPARSE, ids=str)
def test_a_retracted_payload_returns_to_the_residual(codec: SparseCodec) -> None:
    memory, at = codec.new_state(), slice(0, 30)
    vector = torch.randn(30, generator=torch.Generator().manual_seed(2))
    payload = codec.encode(vector, memory, at)
    codec.retract(payload, memory, at)
    if memory is not None and codec.error_feedback:
        assert memory.residual is not None
        if codec.values == "sign":
            torch.testing.assert_close(memory.residual, vector)
        else:
            assert _bits(memory.residual) == _bits(vector)


@pytest.mark.parametrize("codec", SPARSE, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_vector_is_refused_and_leaves_no_state(codec: SparseCodec, bad: float) -> None:
    memory = codec.new_state()
    codec.encode(torch.arange(20.0), memory)
    before = {} if memory is None else memory.to_tensors()
    payload = codec.encode(torch.tensor([1.0] * 19 + [bad]), memory)
    assert "finite" in str(codec.payload_refusal(payload, 20))
    codec.retract(payload, memory, slice(0, 20))
    after = {} if memory is None else memory.to_tensors()
    assert all(torch.equal(before[name], after[name]) for name in ("residual", "velocity") if name in before)


def test_an_overflowing_sum_loses_nothing() -> None:
    codec, memory = TopKCodec(ratio=0.5), CodecState()
    huge = torch.full((2,), 3e38)
    codec.encode(huge, memory)
    assert _sent(codec, huge, memory).tolist() == huge.tolist()
    assert memory.residual is not None
    assert memory.residual.tolist() == [0, huge[0]]


@pytest.mark.parametrize("codec", SPARSE, ids=str)
@settings(deadline=None, max_examples=15)
@given(vector=vectors)
def test_encoding_does_not_change_the_vector(codec: SparseCodec, vector: Tensor) -> None:
    before = vector.clone()
    memory = codec.new_state()
    payload = codec.encode(vector, memory)
    copies = [array.copy() for array in payload.arrays]
    codec.encode(vector, memory)
    assert torch.equal(vector, before)
    assert all((old == new).all() for old, new in zip(copies, payload.arrays, strict=True))


def test_ties_are_broken_by_the_lowest_index() -> None:
    assert _sent(TopKCodec(ratio=0.5), torch.tensor([1.0, -2, 2, 1, 1, -1])).tolist() == [1, -2, 2, 0, 0, 0]
    assert _sent(GradedCodec(ratios=(0.5,), values="f32"), torch.ones(4)).tolist() == [1, 1, 0, 0]


# --- the rule of the paper --------------------------------------------------------------------------------------------


def test_adaptive_compresses_while_the_average_loss_is_small() -> None:
    codec, memory = AdaptiveCodec(ratio=0.5, delta=0.25, smoothing=0.5), CodecState()
    calm, flat = torch.tensor([3.0, 0.0]), torch.tensor([1.0, 1.0])  # half of it loses 0 and 0.5 of the energy
    lengths = [len(codec.encode(vector, memory).arrays) for vector in (calm, flat, flat, calm, calm)]
    # averages:        0, 0.25, 0.375, 0.1875, 0.094
    assert lengths == [2, 2, 1, 2, 2]
    assert memory.averages == {0: pytest.approx(0.09375)}
    assert (memory.compressed, memory.whole, memory.compressed_fraction) == (4, 1, 0.8)


def test_adaptive_averages_each_segment_separately() -> None:
    codec, memory = AdaptiveCodec(ratio=0.5, delta=0.1), CodecState()
    codec.encode(torch.tensor([3.0, 0.0]), memory, slice(0, 2))
    codec.encode(torch.tensor([1.0, 1.0]), memory, slice(2, 4))
    assert memory.averages == {0: 0.0, 2: 0.5}


def test_adaptive_without_feedback_keeps_no_vector() -> None:
    memory = CodecState()
    AdaptiveCodec().encode(torch.arange(50.0), memory)
    assert memory.residual is None


def test_adaptive_with_feedback_adds_the_remaining_values_when_sending_densely() -> None:
    codec, memory = AdaptiveCodec(ratio=0.5, delta=0.3, smoothing=1.0, error_feedback=True), CodecState()
    codec.encode(torch.tensor([3.0, 1.0]), memory)
    assert _sent(codec, torch.tensor([2.0, 1.0]), memory).tolist() == [2, 2]
    assert memory.residual is not None
    assert memory.residual.tolist() == [0, 0]


@settings(deadline=None)
@given(vector=vectors, delta=st.floats(0, 1))
def test_graded_uses_the_first_ratio_whose_loss_is_small_enough(vector: Tensor, delta: float) -> None:
    codec = GradedCodec(ratios=(0.1, 0.4, 0.8), delta=delta, values="f32")
    if not len(vector):
        return
    indices = codec.choose_indices(vector.abs(), None, 0)
    assert indices is not None
    strengths = sorted((float(value) ** 2 for value in vector), reverse=True)
    total = math.fsum(strengths)
    counts = [codec.entry_count(ratio, len(vector)) for ratio in codec.ratios]
    enough = [math.fsum(strengths[:count]) >= (1 - delta) * total * (1 + 1e-9) for count in counts]
    nearly = [math.fsum(strengths[:count]) >= (1 - delta) * total * (1 - 1e-9) for count in counts]
    first = next((count for count, will in zip(counts, enough, strict=True) if will), counts[-1])
    soonest = next((count for count, will in zip(counts, nearly, strict=True) if will), counts[-1])
    assert soonest <= len(indices) <= first


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "codec", [TopKCodec(ratio=0.01), TopKCodec(ratio=0.3), TopKCodec(ratio=1.0), TopKCodec(ratio=0.001, values="f16")]
)
@pytest.mark.parametrize("size", [0, 1, 2, 17, 1000, 12345])
def test_encoded_bytes_can_be_predicted(codec: TopKCodec, size: int) -> None:
    payload = codec.encode(torch.randn(size, generator=torch.Generator().manual_seed(0)))
    assert payload.nbytes == codec.encoded_bytes(size, 4)
    assert payload.nbytes <= 4 * size


def test_one_in_a_hundred_in_half_precision_is_130_times_less() -> None:
    assert 4_000_000 / TopKCodec(ratio=0.01, values="f16").encoded_bytes(1_000_000, 4) > 130


# --- settings ---------------------------------------------------------------------------------------------------------


def test_momentum_needs_feedback() -> None:
    with pytest.raises(ValueError, match="error_feedback"):
        TopKCodec(momentum=0.9, error_feedback=False)


def test_signs_need_feedback() -> None:
    with pytest.raises(ValueError, match="error_feedback"):
        AdaptiveCodec(values="sign")


def test_ratios_must_ascend() -> None:
    with pytest.raises(ValueError, match="ascend"):
        GradedCodec(ratios=(0.1, 0.01))


def test_the_ratio_falls_by_the_same_factor_in_every_turn_of_the_warm_up() -> None:
    codec = TopKCodec(ratio=0.001, warmup=2)
    state, counts = codec.new_state(), []
    for seed in range(5):
        vector = torch.randn(10_000, generator=torch.Generator().manual_seed(seed))
        counts.append(int(codec.decode(codec.encode(vector, state), 10_000).count_nonzero()))
        state = CodecState.from_tensors(state.to_tensors())  # type: ignore[union-attr]
    assert counts == [1000, 100, 10, 10, 10]


def test_momentum_is_not_applied_twice() -> None:
    codec = {"kind": "graded", "momentum": 0.9}
    with pytest.raises(SettingError, match=r"codec\.momentum: devices and the coordinator would both apply momentum"):
        decode_settings({"codec": codec, "server": {"kind": "sgd", "momentum": 0.9}}, Rounds)
    with pytest.raises(SettingError, match=r"codec\.momentum"):
        decode_settings({"codec": codec, "server": "adam"}, Rounds)
    assert decode_settings({"codec": codec, "server": "sgd"}, Rounds).codec.momentum == 0.9  # type: ignore[attr-defined]

"""Codecs: how a slice of an update is encoded for sending, and decoded.

dense     every value as it is
fp16      every value in half precision
int8      every value in a byte, with a scale for each block
top-k     the largest values; the rest is added to the next update
adaptive  top-k while that loses little of the gradient, else every value (ScaDLES)
graded    as few of the largest values as stay within a loss limit
power-sgd two thin factors of every weight matrix
"""

from potluck.model.codecs.codec_interface import WHOLE_VECTOR, Codec
from potluck.model.codecs.codec_state import CodecState
from potluck.model.codecs.dense_codec import DenseCodec, Fp16Codec
from potluck.model.codecs.int8_codec import Int8Codec
from potluck.model.codecs.power_sgd_codec import PowerSgdCodec
from potluck.model.codecs.sparse_codec import SparseCodec
from potluck.model.codecs.top_k_codec import AdaptiveCodec, GradedCodec, TopKCodec

__all__ = [
    "WHOLE_VECTOR",
    "AdaptiveCodec",
    "Codec",
    "CodecState",
    "DenseCodec",
    "Fp16Codec",
    "GradedCodec",
    "Int8Codec",
    "PowerSgdCodec",
    "SparseCodec",
    "TopKCodec",
]

"""What goes on the wire for a slice of numbers, and how it is read back.

dense     every number as it is
fp16      every number in half precision
int8      every number in a byte, a scale for each block
top-k     the largest few, with what was left out added next time
adaptive  top-k while that loses little of the gradient, else everything (ScaDLES)
graded    as few as lose no more than asked
"""

from potluck.model.codecs.adaptive_codec import AdaptiveCodec
from potluck.model.codecs.codec_interface import WHOLE, Codec
from potluck.model.codecs.codec_state import CodecState
from potluck.model.codecs.dense_codec import DenseCodec
from potluck.model.codecs.fp16_codec import Fp16Codec
from potluck.model.codecs.graded_codec import GradedCodec
from potluck.model.codecs.int8_codec import Int8Codec
from potluck.model.codecs.sparse_codec import SparseCodec
from potluck.model.codecs.top_k_codec import TopKCodec

__all__ = [
    "WHOLE",
    "AdaptiveCodec",
    "Codec",
    "CodecState",
    "DenseCodec",
    "Fp16Codec",
    "GradedCodec",
    "Int8Codec",
    "SparseCodec",
    "TopKCodec",
]

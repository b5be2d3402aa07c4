"""What goes on the wire for a slice of numbers, and how it is read back.

dense     every number as it is
fp16      every number in half precision
int8      every number in a byte, a scale for each block
top-k     the largest few, with what was left out added next time
adaptive  top-k while that loses little of the gradient, else everything (ScaDLES)
graded    as few as lose no more than asked
"""

from potluck.model.codecs.adaptive import Adaptive
from potluck.model.codecs.codec import WHOLE, Codec
from potluck.model.codecs.dense import Dense
from potluck.model.codecs.fp16 import Fp16
from potluck.model.codecs.graded import Graded
from potluck.model.codecs.int8 import Int8
from potluck.model.codecs.memory import Memory
from potluck.model.codecs.sparse import Sparse
from potluck.model.codecs.topk import TopK

__all__ = ["WHOLE", "Adaptive", "Codec", "Dense", "Fp16", "Graded", "Int8", "Memory", "Sparse", "TopK"]

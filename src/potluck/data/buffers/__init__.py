"""Stream buffers: retention policies, the buffer that applies them, and the account of every sample."""

from potluck.data.buffers.buffer_policies import BufferPolicy, PersistencePolicy, TruncationPolicy, ValuePolicy
from potluck.data.buffers.sample_account import SampleAccount
from potluck.data.buffers.sample_buffer import SampleBuffer, SampleBufferState

__all__ = [
    "BufferPolicy",
    "PersistencePolicy",
    "SampleAccount",
    "SampleBuffer",
    "SampleBufferState",
    "TruncationPolicy",
    "ValuePolicy",
]

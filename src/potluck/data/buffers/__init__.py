"""What a device keeps of its stream: policies, one buffer that follows them, and the account of every sample."""

from potluck.data.buffers.accounts import Account
from potluck.data.buffers.held import Held, HeldState
from potluck.data.buffers.policies import Buffer, Persistence, Truncation, Value

__all__ = ["Account", "Buffer", "Held", "HeldState", "Persistence", "Truncation", "Value"]

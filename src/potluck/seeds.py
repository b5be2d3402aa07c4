"""One seed, a tree of generators by name: same seed and name, same numbers, whoever asks and whenever."""

from __future__ import annotations

import hashlib

import numpy as np

__all__ = ["child", "generator"]


def child(seed: int, *name: object) -> int:
    """A 63-bit seed for the branch called `name`."""
    digest = hashlib.blake2b("\0".join([str(seed), *map(str, name)]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *name: object) -> np.random.Generator:
    """The generator of the branch called `name`."""
    return np.random.default_rng(child(seed, *name))

"""What all tests share: no deadline for a single example, since the machine may be busy with others."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("potluck", deadline=None)
settings.load_profile("potluck")

"""Potluck trains one PyTorch model on whatever devices turn up."""

__version__ = "0.1.0"

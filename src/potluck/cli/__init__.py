"""The command line: each command parses, makes one call and prints. Torch is imported only by commands that need it."""

from potluck.cli.app import main

__all__ = ["main"]

"""The command line: parse, one call, print. Nothing here loads torch before a command needs it."""

from potluck.cli.app import main

__all__ = ["main"]

"""Benchmarks of Potluck, run from a checkout with `potluck bench`; see README.md in this folder.

This file imports nothing: the environments of the peers do not have Potluck installed.
"""

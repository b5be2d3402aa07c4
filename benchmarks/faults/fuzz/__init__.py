"""Feeds mutated messages and records to everything that decodes or handles what a peer sent.

fuzz_corpus.py       real messages of both loops, recorded from simulated runs
mutation.py          changes bytes, or the values inside a message
memory_transport.py  takes Zenoh's place, so that the live runtimes run in one process
decoder_targets.py   decoders and readers alone
runtime_targets.py   the coordinator's and a device's runtime with a running loop behind them
fuzz_run.py          feeds a number of inputs and counts what is not a refusal
"""

"""Golden hashes of small simulated jobs: a change that is meant to keep behaviour must keep every one of them."""

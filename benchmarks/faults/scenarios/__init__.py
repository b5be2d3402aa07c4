"""The scenarios of `faults`, one per file, each with a `SCENARIO`."""

"""Composes a run: a job is prepared once, then handed to a world.

job ─prepare_job─▶ PreparedJob ─┬─ simulate ─▶ SimulatedWorld ────────────┐
                                ├─ serve, lab ─▶ coordinator on Zenoh ────┼─▶ run_to_end ─▶ RunStore, Result
                                ├─ join ─▶ a device of a live run         │
                                └─ plan ─▶ JobPlan                        └ journal, checkpoints, model, summary
"""

from potluck.run.resumed_run import resume
from potluck.run.run_result import Result
from potluck.run.simulated_run import simulate

__all__ = ["Result", "resume", "simulate"]

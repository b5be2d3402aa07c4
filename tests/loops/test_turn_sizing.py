"""How many samples an update may count for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from potluck.fleet import Fleet
from potluck.loops.device_costs import DeviceCosts
from potluck.loops.settings import Rounds
from potluck.loops.turn_sizing import DeviceSamples, SampleLimit, TurnSizing
from potluck.settings import decode_settings

HELD = 479


def sizing(**rounds: Any) -> TurnSizing:
    fleet = decode_settings({"devices": [{"name": "a", "flops": "1 GFLOP/s"}]}, Fleet)
    costs = DeviceCosts([1.0], [2.0], [100], [10])
    samples = DeviceSamples({"a": np.arange(HELD)}, None)
    return TurnSizing(decode_settings(rounds, Rounds), fleet.members, costs, samples=samples)


SGD = {"kind": "sgd", "epochs": 3}


@pytest.mark.parametrize(
    ("local", "most"),
    [(SGD, 3 * HELD), ({"kind": "sgd", "steps": 4}, 4 * 33), ({"kind": "gradient"}, 32)],
    ids=["epochs", "steps", "gradient"],
)
def test_a_device_claims_no_more_than_a_turn_of_its_shard(local: dict[str, Any], most: int) -> None:
    """479 samples allowed a claim of a million."""
    limit = sizing(local=local).sample_limit("a", None, 0.0, 1.0)
    assert limit == SampleLimit(most, most)
    rounds = decode_settings({"local": local}, Rounds)
    passes = rounds.local.batches_per_turn(rounds.batching.batches_per_epoch(HELD))
    assert sum(rounds.batching.turn_batch_sizes(HELD, passes)) <= limit.claimed, "an honest turn is within it"


def test_what_a_device_declares_counts_up_to_what_the_split_gives_it() -> None:
    assert sizing(local=SGD).sample_limit("a", 100, 0.0, 1.0) == SampleLimit(300, 300)
    assert sizing(local=SGD).sample_limit("a", 10**6, 0.0, 1.0) == SampleLimit(3 * 10**6, 3 * HELD)
    assert sizing(local=SGD).sample_limit("a", 0, 0.0, 1.0) == SampleLimit(0, 0)


def test_data_of_its_own_counts_where_the_job_allows_it() -> None:
    allowing = sizing(local=SGD, own_samples=1000)
    assert allowing.sample_limit("a", 1000, 0.0, 1.0).counted == 3000
    assert allowing.sample_limit("a", 10**6, 0.0, 1.0).counted == 3 * (HELD + 1000)

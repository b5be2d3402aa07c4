from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.model.lr_schedules import PlateauSchedule, PlateauState

_SCHEDULES = st.builds(
    PlateauSchedule,
    factor=st.sampled_from([0.5, 0.1]),
    patience=st.integers(0, 3),
    threshold=st.sampled_from([0.0, 1e-4, 0.1]),
    cooldown=st.integers(0, 3),
    floor=st.sampled_from([0.0, 0.2]),
)


@settings(max_examples=60, deadline=None)
@given(_SCHEDULES, st.booleans(), st.lists(st.one_of(st.floats(0.5, 2.0), st.just(float("nan"))), max_size=30))
def test_a_plateau_schedule_equals_that_of_pytorch(plateau: PlateauSchedule, higher: bool, values: list[float]) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max" if higher else "min", factor=plateau.factor, patience=plateau.patience,
        threshold=plateau.threshold, cooldown=plateau.cooldown, min_lr=plateau.floor,
    )  # fmt: skip
    state = PlateauState()
    for round, value in enumerate(values):
        reference.step(value)
        state = plateau.observe_evaluation(state, round, value, higher)
        state = msgspec.json.decode(msgspec.json.encode(state), type=PlateauState)  # as a checkpoint keeps it
        assert plateau.lr_factor(round, state.drops) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)


def test_earlier_rounds_keep_their_factor_and_a_repeated_evaluation_counts_once() -> None:
    plateau = PlateauSchedule(factor=0.5, patience=1)
    state = PlateauState()
    for round in (0, 5, 5, 5, 10, 15):
        state = plateau.observe_evaluation(state, round, 1.0, higher_is_better=False)
    assert state.drops == [10]
    assert [plateau.lr_factor(round, state.drops) for round in (9, 10, 20)] == [1.0, 0.5, 0.5]


def test_drops_end_where_they_make_no_difference() -> None:
    plateau = PlateauSchedule(factor=0.1, patience=0)
    state = PlateauState()
    for round in range(100):
        state = plateau.observe_evaluation(state, round, 1.0, higher_is_better=False)
    assert len(state.drops) < 12

"""Calibration corrects groups whose logits are too large or too small, and skips untrained groups."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from potluck.errors import DataError
from potluck.model.decoupled import AssembledNetwork, calibrate_groups, decouple
from potluck.model.decoupled.group_calibration import Extent
from potluck.planning.groups import even_groups
from tests.model.decoupled.networks import SHAPE, samples, small, trained


@cache
def learned() -> dict[str, torch.Tensor]:
    submodel = decouple(small(norm=False), SHAPE, even_groups(6, 3), 1).build_submodel({0, 1, 2})
    trained(submodel, steps=25)
    return submodel.state_dict()


def network(normalised: bool = True) -> AssembledNetwork:
    grouped = decouple(small(norm=False), SHAPE, even_groups(6, 3), 1, normalised=normalised)
    grouped.load_state_dict(learned())
    return grouped.assemble()


def accuracy(assembled: AssembledNetwork) -> float:
    inputs, labels = samples(600, seed=77)
    with torch.no_grad():
        return float((assembled(inputs).argmax(dim=1) == labels).float().mean())


@pytest.mark.parametrize("extent", ["readout", "heads"])
@pytest.mark.parametrize("normalised", [True, False])
def test_a_group_with_too_large_logits_is_corrected(extent: Extent, normalised: bool) -> None:
    assembled = network(normalised)
    fair = accuracy(assembled)
    assembled.group_branch(1).readout.offset.fill_(6.0)
    assembled.group_branch(2).readout.scale.fill_(0.3)
    spoiled = accuracy(assembled)
    assert spoiled < fair - 0.1
    report = calibrate_groups(assembled, [samples(120, seed=3)], extent=extent)
    assert accuracy(assembled) > fair - 0.02
    assert report.loss[1] < report.loss[0]
    assert report.accuracy[1] > report.accuracy[0]


def test_the_reported_accuracy_is_that_of_the_calibrated_network() -> None:
    assembled = network()
    inputs, labels = samples(90, seed=4)
    report = calibrate_groups(assembled, [(inputs[:50], labels[:50]), (inputs[50:], labels[50:])], extent="heads")
    logits = assembled(inputs)
    assert report.accuracy[1] == pytest.approx(float((logits.argmax(dim=1) == labels).float().mean()))
    assert report.loss[1] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels).detach()), rel=1e-4)
    assert (report.samples, report.skipped) == (90, 0)


def test_few_samples_calibrate_less_than_many() -> None:
    moved = []
    for count in (6, 600):
        assembled = network()
        assembled.group_branch(0).readout.offset.fill_(3.0)
        calibrate_groups(assembled, [samples(count, seed=5)])
        moved.append(abs(float(assembled.group_branch(0).readout.offset) - 3.0))
    assert moved[0] < moved[1]


def test_untrained_groups_are_not_calibrated() -> None:
    assembled = network()
    assembled.group_branch(2).readout.trained.zero_()
    before = {name: value.clone() for name, value in assembled.groups["2"].state_dict().items()}
    report = calibrate_groups(assembled, [samples(60)])
    assert (report.samples, report.skipped) == (40, 20)
    assert all(torch.equal(value, before[name]) for name, value in assembled.groups["2"].state_dict().items())
    assert assembled.untrained_groups() == (2,)


def test_calibration_needs_a_usable_sample() -> None:
    assembled = network()
    for count in (0, 1):
        assembled.group_branch(count).readout.trained.zero_()
    inputs, labels = samples(60)
    with pytest.raises(DataError, match="no held-out sample"):
        calibrate_groups(assembled, [(inputs[labels < 4], labels[labels < 4])])

"""Where layers come from after deaths: every old layout, every single and adjacent death, every new layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import pytest

from potluck.loops.node import COORDINATOR
from potluck.loops.pipeline.layer_sources import HeldLayers, newest_complete_version, plan_layer_sources

OLD, COPIED, NEWEST = 3, 6, 7  # versions: of the checkpoint, of the copies, and where the stages stand
TERM = 1


class Stage(NamedTuple):
    device: str
    layers: range


def layouts(devices: Sequence[str], layers: int) -> Iterator[list[Stage]]:
    """The first of these devices, as many as there are layers for, cut in every way."""
    for count in range(1, min(len(devices), layers) + 1):
        for cuts in combinations(range(1, layers), count - 1):
            runs = pairwise((0, *cuts, layers))
            yield [Stage(device, range(*run)) for device, run in zip(devices, runs, strict=False)]


def deaths(stages: Sequence[Stage]) -> Iterator[set[str]]:
    """Each one, and each with the stage after it, which keeps its copies; that of the last is the first."""
    names = [stage.device for stage in stages]
    pairs = [{one, other} for one, other in zip(names, (*names[1:], names[0]), strict=True)]
    for dead in [*({name} for name in names), *pairs]:
        if len(dead) < len(names):
            yield dead


def stock(stages: Sequence[Stage], copies: bool, archive: int) -> list[HeldLayers]:
    """What a term's devices tell: their own layers, copies of the stage before, and what the coordinator has."""
    held = [HeldLayers(name, run[0], run[-1], version, TERM) for name, run in stages for version in (COPIED, NEWEST)]
    if copies and len(stages) > 1:
        keepers = (*stages[1:], stages[0])
        for stage, keeper in zip(stages, keepers, strict=True):
            held.append(HeldLayers(keeper.device, stage.layers[0], stage.layers[-1], COPIED, TERM))
    everything = stages[-1].layers[-1]
    return [*held, HeldLayers(COORDINATOR, 0, everything, archive, 0)]


def whole_elsewhere(stages: Sequence[Stage], dead: set[str], copies: bool) -> bool:
    """Whether the living hold each layer among them: a stage lives, or the next one does and keeps copies."""
    names = [stage.device for stage in stages]
    keepers = dict(zip(names, (*names[1:], names[0]), strict=True))
    return all(name not in dead or (copies and keepers[name] not in dead) for name in names)


def check(stages: list[Stage], dead: set[str], new: list[Stage], copies: bool, archive: int) -> None:
    layers = stages[-1].layers[-1] + 1
    held = [each for each in stock(stages, copies, archive) if each.device not in dead]
    version = newest_complete_version(held, layers)
    among_devices = whole_elsewhere(stages, dead, copies)
    assert version == (COPIED if among_devices else archive)
    for receiver, run in new:
        covered = []
        for origin in plan_layer_sources(held, receiver, run, version):
            assert origin.device not in dead
            assert origin.version == version
            having = [each for each in held if (each.device, each.version) == (origin.device, version)]
            for layer in range(origin.first, origin.last + 1):
                assert any(each.covers_layer(layer) for each in having), "it really holds that layer in that version"
                own = any(
                    each.covers_layer(layer) for each in held if (each.device, each.version) == (receiver, version)
                )
                others = any(
                    each.covers_layer(layer) for each in held if each.device != COORDINATOR and each.version == version
                )
                assert (origin.device == receiver) == own, "what is at hand does not travel"
                assert (origin.device == COORDINATOR) == (not others), "from the archive what nobody else has"
                covered.append(layer)
        assert covered == list(run)


def check_mixed(stages: list[Stage], dead: set[str], new: list[Stage], copies: bool, archive: int) -> None:
    """As published: each layer in the newest version that lives, whichever that is."""
    held = [each for each in stock(stages, copies, archive) if each.device not in dead]
    for receiver, run in new:
        for origin in plan_layer_sources(held, receiver, run, None):
            for layer in range(origin.first, origin.last + 1):
                living = [each for each in held if each.covers_layer(layer)]
                assert origin.version == max(each.version for each in living)
                assert any((each.device, each.version) == (origin.device, origin.version) for each in living)


def sweep(stages: int, layers: int) -> int:
    """All layouts of exactly so many stages and layers; gives back how many cases there were."""
    cases = 0
    names = [f"d{place}" for place in range(stages)]
    for old in layouts(names, layers):
        if len(old) < stages:
            continue
        for dead in deaths(old):
            left = [name for name in names if name not in dead]
            for new in (*layouts(left, layers), *layouts([*left[::-1], "new"], layers)):
                for copies, archive in ((True, OLD), (True, COPIED), (False, OLD)):
                    check(old, dead, new, copies, archive)
                    check_mixed(old, dead, new, copies, archive)
                    cases += 1
    return cases


@pytest.mark.parametrize("layers", range(2, 7))
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_every_layer_has_a_source_that_is_alive(stages: int, layers: int) -> None:
    assert (sweep(stages, layers) > 0) == (stages <= layers)


@pytest.mark.long
@pytest.mark.parametrize("layers", range(2, 9))
@pytest.mark.parametrize("stages", [2, 3, 4, 5])
def test_every_layer_has_a_source_in_larger_layouts_too(stages: int, layers: int) -> None:
    assert (sweep(stages, layers) > 0) == (stages <= layers)


def test_the_table_has_every_case() -> None:
    """Three stages of four layers: three ways to cut, six sets of dead, and new layouts with and without a new one."""
    names = ["d0", "d1", "d2"]
    assert sum(len(old) == 3 for old in layouts(names, 4)) == 3
    old = next(old for old in layouts(names, 4) if len(old) == 3)
    assert sorted(map(sorted, deaths(old))) == [["d0"], ["d0", "d1"], ["d0", "d2"], ["d1"], ["d1", "d2"], ["d2"]]
    after_one, after_two = (1 + 3) + (1 + 3 + 3), 1 + (1 + 3)
    assert sweep(3, 4) == 3 * 3 * (3 * after_one + 3 * after_two)

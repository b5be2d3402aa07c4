"""Where layers come from after deaths: every old layout, every single and adjacent death, every new layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import pytest

from potluck.loops.node import COORDINATOR
from potluck.loops.pipeline.layer_sources import HeldLayers, newest_complete_version, plan_layer_sources

OLD, COPIED, NEWEST = 3, 6, 7  # versions: of the checkpoint, of the copies, and of the stages
TERM = 1


class Stage(NamedTuple):
    device: str
    layers: range


def layouts(devices: Sequence[str], layers: int) -> Iterator[list[Stage]]:
    """Every way to assign the layers to the first of these devices."""
    for count in range(1, min(len(devices), layers) + 1):
        for cuts in combinations(range(1, layers), count - 1):
            runs = pairwise((0, *cuts, layers))
            yield [Stage(device, range(*run)) for device, run in zip(devices, runs, strict=False)]


def deaths(stages: Sequence[Stage]) -> Iterator[set[str]]:
    """Each stage alone, and each with the next stage, which holds its copies (the first, for the last stage)."""
    names = [stage.device for stage in stages]
    pairs = [{first, second} for first, second in zip(names, (*names[1:], names[0]), strict=True)]
    for dead in [*({name} for name in names), *pairs]:
        if len(dead) < len(names):
            yield dead


def inventory(stages: Sequence[Stage], copies: bool, archive: int) -> list[HeldLayers]:
    """The inventory of a term: each stage's layers, its copies of the stage before, and the coordinator's archive."""
    held_layers = [
        HeldLayers(name, run[0], run[-1], version, TERM) for name, run in stages for version in (COPIED, NEWEST)
    ]
    if copies and len(stages) > 1:
        holders = (*stages[1:], stages[0])
        for stage, holder in zip(stages, holders, strict=True):
            held_layers.append(HeldLayers(holder.device, stage.layers[0], stage.layers[-1], COPIED, TERM))
    everything = stages[-1].layers[-1]
    return [*held_layers, HeldLayers(COORDINATOR, 0, everything, archive, 0)]


def all_layers_survive(stages: Sequence[Stage], dead: set[str], copies: bool) -> bool:
    """Whether the survivors hold every layer: each stage is alive, or the next one is and has copies."""
    names = [stage.device for stage in stages]
    holders = dict(zip(names, (*names[1:], names[0]), strict=True))
    return all(name not in dead or (copies and holders[name] not in dead) for name in names)


def check(stages: list[Stage], dead: set[str], new: list[Stage], copies: bool, archive: int) -> None:
    layers = stages[-1].layers[-1] + 1
    held_layers = [entry for entry in inventory(stages, copies, archive) if entry.device not in dead]
    version = newest_complete_version(held_layers, layers)
    among_devices = all_layers_survive(stages, dead, copies)
    assert version == (COPIED if among_devices else archive)
    for receiver, run in new:
        covered = []
        for origin in plan_layer_sources(held_layers, receiver, run, version):
            assert origin.device not in dead
            assert origin.version == version
            matches = [entry for entry in held_layers if (entry.device, entry.version) == (origin.device, version)]
            for layer in range(origin.first, origin.last + 1):
                assert any(entry.covers_layer(layer) for entry in matches), "it really holds that layer in that version"
                own_copy = any(
                    entry.covers_layer(layer)
                    for entry in held_layers
                    if (entry.device, entry.version) == (receiver, version)
                )
                others = any(
                    entry.covers_layer(layer)
                    for entry in held_layers
                    if entry.device != COORDINATOR and entry.version == version
                )
                assert (origin.device == receiver) == own_copy, "what is at hand does not travel"
                assert (origin.device == COORDINATOR) == (not others), (
                    "only layers that no device has come from the archive"
                )
                covered.append(layer)
        assert covered == list(run)


def check_mixed(stages: list[Stage], dead: set[str], new: list[Stage], copies: bool, archive: int) -> None:
    """As published: each layer comes from its newest surviving version."""
    held_layers = [entry for entry in inventory(stages, copies, archive) if entry.device not in dead]
    for receiver, run in new:
        for origin in plan_layer_sources(held_layers, receiver, run, None):
            for layer in range(origin.first, origin.last + 1):
                candidates = [entry for entry in held_layers if entry.covers_layer(layer)]
                assert origin.version == max(entry.version for entry in candidates)
                assert any((entry.device, entry.version) == (origin.device, origin.version) for entry in candidates)


def sweep(stages: int, layers: int) -> int:
    """Check all layouts of exactly this many stages and layers; return the number of cases."""
    cases = 0
    names = [f"d{index}" for index in range(stages)]
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

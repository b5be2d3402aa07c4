"""Every layer gets a live source whenever one exists, for all layouts, failures and new layouts of small pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, combinations

import pytest

from potluck.planning.layer_redistribution import LayerSource, StageLayout, chain_replicas, plan_redistribution

# Device ids that are neither positions nor sorted, so that confusing the two is detected.
NAMES = (7, 3, 9, 0, 5)


def layouts(order: tuple[int, ...], layers: int) -> Iterator[StageLayout]:
    for cuts in combinations(range(1, layers), len(order) - 1):
        yield StageLayout(cuts, order, layers)


def subsets(names: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))


def cases(most_devices: int, most_layers: int) -> Iterator[tuple[StageLayout, tuple[int, ...], StageLayout]]:
    """Each old layout, dead set and layout of the survivors, in the old order and in reverse."""
    for devices in range(1, most_devices + 1):
        for layers in range(devices, most_layers + 1):
            for old in layouts(NAMES[:devices], layers):
                for dead in subsets(old.order):
                    alive = tuple(name for name in old.order if name not in dead)
                    for order in {alive, alive[::-1]} - {()}:
                        for new in layouts(order, layers):
                            yield old, dead, new


@lru_cache(maxsize=4)
def inventory(old: StageLayout, global_copy: bool) -> dict[tuple[int, str], set[int]]:
    """The layers each device holds after all replicas were sent, derived from the senders."""
    holdings: dict[tuple[int, str], set[int]] = {(name, kind): set() for name in old.order for kind in ("own", "chain")}
    for index, (name, layers) in enumerate(zip(old.order, old.stages, strict=True)):
        holdings[name, "own"] |= set(layers)
        if len(old.order) > 1:
            holdings[old.order[(index + 1) % len(old.order)], "chain"] |= set(layers)
    holdings[old.order[0], "global"] = set(range(old.layers)) if global_copy else set()
    return holdings


def expected(
    layer: int, receiver: int, old: StageLayout, dead: tuple[int, ...], holdings: dict[tuple[int, str], set[int]]
) -> LayerSource | None:
    """The source by the published order of preference."""
    live = [name for name in old.order if name not in dead]
    if receiver in live and layer in holdings[receiver, "own"]:
        return LayerSource(receiver, "own")
    if receiver in live and layer in holdings[receiver, "chain"]:
        return LayerSource(receiver, "own replica")
    for kind, copy in (("own", "owner"), ("chain", "replica"), ("global", "global")):
        for name in live:
            if layer in holdings.get((name, kind), ()):
                return LayerSource(name, copy)  # type: ignore[arg-type]
    return None


def check(most_devices: int, most_layers: int) -> int:
    count = 0
    for old, dead, new in cases(most_devices, most_layers):
        for global_copy in (False, True):
            count += 1
            check_case(old, dead, new, global_copy)
    return count


def check_case(old: StageLayout, dead: tuple[int, ...], new: StageLayout, global_copy: bool) -> None:
    holdings = inventory(old, global_copy)
    plan = plan_redistribution(old, dead, new, global_copy=global_copy)
    for receiver, layers, stage in zip(new.order, new.stages, plan.stages, strict=True):
        sources = {layer: expected(layer, receiver, old, dead, holdings) for layer in layers}
        assert stage == {layer: source for layer, source in sources.items() if source}
    assert plan.lost == must_be_lost(old, dead, global_copy)


@lru_cache(maxsize=4)
def must_be_lost(old: StageLayout, dead: tuple[int, ...], global_copy: bool) -> tuple[int, ...]:
    """Layers whose owner and its successor are both dead, unless the first device is alive and has a copy."""
    if global_copy and old.order[0] not in dead:
        return ()
    rank = {name: index for index, name in enumerate(old.order)}
    unreplicated = {name for name in dead if old.order[(rank[name] + 1) % len(rank)] in dead}
    return tuple(layer for layer in range(old.layers) if old.owner_of(layer) in unreplicated)


def test_all_pipelines_of_five_devices_and_six_layers() -> None:
    assert check(5, 6) > 6_292


@pytest.mark.long
def test_all_pipelines_of_five_devices_and_eight_layers() -> None:
    assert check(5, 8) > 100_000


def test_positions_are_resolved_through_the_old_layout() -> None:
    """The first device's death shifts all positions; mixing old and new ones would ask the wrong neighbour."""
    old, new = StageLayout((2, 4), (10, 11, 12), 6), StageLayout((3,), (11, 12), 6)
    plan = plan_redistribution(old, {10}, new)
    assert plan.stages[0] == {
        0: LayerSource(11, "own replica"),
        1: LayerSource(11, "own replica"),
        2: LayerSource(11, "own"),
    }
    assert plan.stages[1] == {3: LayerSource(12, "own replica"), 4: LayerSource(12, "own"), 5: LayerSource(12, "own")}
    assert list(plan.layer_transfers()) == []


def test_fresh_prefers_the_live_owner_to_a_local_replica() -> None:
    old, new = StageLayout((2,), (0, 1), 4), StageLayout((1,), (0, 1), 4)
    assert plan_redistribution(old, (), new).stages[1][1] == LayerSource(1, "own replica")
    fresh = plan_redistribution(old, (), new, prefer="fresh")
    assert fresh.stages[1][1] == LayerSource(0, "owner")
    assert list(fresh.layer_transfers()) == [(1, 0, 1)]


def test_fresh_finds_a_source_exactly_where_local_does() -> None:
    for old, dead, new in cases(4, 5):
        assert plan_redistribution(old, dead, new).lost == plan_redistribution(old, dead, new, prefer="fresh").lost


def test_new_and_restarted_devices_fetch_everything() -> None:
    old, new = StageLayout((2,), (0, 1), 4), StageLayout((1, 2), (0, 1, 8), 4)
    plan = plan_redistribution(old, {1}, new)
    assert plan.stages[1] == {1: LayerSource(0, "owner")}
    assert plan.stages[2] == {2: LayerSource(0, "replica"), 3: LayerSource(0, "replica")}
    assert list(plan.layer_transfers()) == [(1, 0, 1), (2, 0, 8), (3, 0, 8)]


def test_lost_layers_are_named() -> None:
    old = StageLayout((1, 3, 4), (0, 1, 2, 3), 6)
    plan = plan_redistribution(old, {1, 2}, StageLayout((3,), (0, 3), 6))
    assert plan.lost == (1, 2)
    assert plan_redistribution(old, {1, 2}, StageLayout((3,), (0, 3), 6), global_copy=True).lost == ()


def test_a_replica_that_was_never_sent_is_not_requested() -> None:
    old, new = StageLayout((2,), (0, 1), 4), StageLayout((), (0,), 4)
    assert plan_redistribution(old, {1}, new).lost == ()
    assert plan_redistribution(old, {1}, new, replicas={}).lost == (2, 3)


def test_the_replica_chain_wraps_around_and_a_single_device_has_none() -> None:
    assert chain_replicas(StageLayout((1, 2), (4, 6, 5), 3)) == {4: 6, 6: 5, 5: 4}
    assert chain_replicas(StageLayout((), (4,), 3)) == {}

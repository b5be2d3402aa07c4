"""The live world conforms to the Node interface."""

from __future__ import annotations

from typing import ClassVar

import pytest

from potluck.fleet import Fleet
from potluck.loops.messages import Invite, Joined, Pull
from potluck.loops.node import Node
from tests.time_limits import within
from tests.worlds.conformance import Ended, Main, MakeWorld, NodeConformance, _beat, fleet_of
from tests.worlds.live.live_fleet import LiveFleet


class TestLive(NodeConformance):
    tick: ClassVar[float] = 0.2
    slack: ClassVar[float] = 0.15

    @pytest.fixture
    def make_world(self) -> MakeWorld:
        def live(fleet: Fleet, coordinator: Main, device: Main, *, seed: int = 0) -> Ended:
            with within(30):
                return LiveFleet(fleet, device, seed).run(coordinator)

        return live

    def test_the_same_seed_loses_the_same_messages(self, make_world: MakeWorld) -> None:
        """Compared by number: real clocks drift too much to identify a message by its time of arrival."""

        async def coordinate(node: Node) -> list[int]:
            received: list[int] = []
            while (envelope := await node.receive(8 * self.tick)) is not None:
                match envelope.message:
                    case Joined():
                        await node.send("a", Invite(0, 0, int(50 * self.tick)))
                    case Pull(turn=turn):
                        received.append(turn)
            return received

        faults = [self._at("lose", 0, lasting=1000, share=0.5)]
        fleet = fleet_of("a", faults=faults)
        # the invitation may get lost as well, and with it everything: a seed with which it does not
        first, again = (make_world(fleet, coordinate, _beat, seed=2).result for _ in range(2))
        both = min(max(first), max(again))
        assert [turn for turn in first if turn <= both] == [turn for turn in again if turn <= both]
        assert 0.2 * both < len(first) < 0.8 * both

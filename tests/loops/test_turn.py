"""The protocol rules of a device's turn, each checked on a recording node."""

from __future__ import annotations

from typing import Any

import numpy as np

from potluck.loops.backends import TimingOnlyTrainer
from potluck.loops.batch_source import ShardBatchSource
from potluck.loops.device_costs import DeviceCosts
from potluck.loops.device_estimates import DeviceEstimates, LinkPrior
from potluck.loops.messages import Accept, Invite, Lost, Message, Pull, Push, Release, Released, Segment, Stop
from potluck.loops.node import COORDINATOR
from potluck.loops.rounds_device import RoundsDevice, RoundsDeviceContext
from potluck.loops.settings import Rounds
from potluck.payload import Payload
from potluck.settings import decode_settings
from tests.loops.recording_node import RecordingNode, on_virtual_time

LAYERS = 3
COSTS = DeviceCosts([1.0] * LAYERS, [2.0] * LAYERS, [100] * LAYERS, [10] * LAYERS, flops=10.0)
RETRY_S = 5.0
TRAINS_S = 9.0  # 3 + 6 FLOP for each of 10 samples, at 10 FLOP/s


class Bench:
    """A device on a recording node."""

    def __init__(self, **settings: Any) -> None:
        self.node = RecordingNode("pi")
        rounds = decode_settings({"batching": {"kind": "fixed", "size": 10}, **settings}, Rounds)
        context = RoundsDeviceContext(
            rounds, TimingOnlyTrainer(lambda identity: COSTS), lambda identity: COSTS,
            ShardBatchSource(self.node, rounds, np.arange(10)), DeviceEstimates.from_prior(LinkPrior(1e6, 1e6)),
        )  # fmt: skip
        self.device = RoundsDevice(self.node, context)

    async def deliver_from_coordinator(self, *messages: Message) -> None:
        """Let the coordinator say something."""
        await self.node.deliver(COORDINATOR, *messages)

    async def invite(self, turn: int, **fields: Any) -> None:
        if turn == 0:
            self.node.start(self.device.main())
        await self.deliver_from_coordinator(Invite(turn, turn, turn, **fields))

    async def serve(self, turn: int, first: int = 0, last: int = LAYERS - 1) -> None:
        """Send some layers of the model."""
        await self.deliver_from_coordinator(Segment(Payload(100), turn=turn, first=first, last=last))


@on_virtual_time
async def test_a_turn_pulls_computes_and_pushes_in_this_order() -> None:
    bench = Bench()
    await bench.invite(0)
    assert bench.node.sent_to(COORDINATOR) == [Pull(0, 0, LAYERS - 1)]
    assert bench.node.computed == []
    await bench.serve(0)
    assert bench.node.sent_of(Push) == []
    await bench.node.advance(TRAINS_S)
    assert [(push.first, push.last, push.samples) for push in bench.node.sent_of(Push)] == [(0, LAYERS - 1, 10)]


@on_virtual_time
async def test_a_pull_is_repeated_until_its_segment_arrives() -> None:
    bench = Bench()
    await bench.invite(0)
    await bench.node.advance(3 * RETRY_S)
    assert bench.node.times_of(Pull) == [0.0, RETRY_S, 3 * RETRY_S]
    await bench.serve(0)
    await bench.node.advance(20 * RETRY_S)
    assert len(bench.node.times_of(Pull)) == 3


@on_virtual_time
async def test_a_push_is_repeated_until_it_is_accepted() -> None:
    bench = Bench()
    await bench.invite(0)
    await bench.serve(0)
    await bench.node.advance(TRAINS_S + RETRY_S)
    assert bench.node.times_of(Push) == [TRAINS_S, TRAINS_S + RETRY_S]
    await bench.deliver_from_coordinator(Accept(0, 0))
    await bench.node.advance(20 * RETRY_S)
    assert len(bench.node.times_of(Push)) == 2


@on_virtual_time
async def test_an_invitation_that_arrives_twice_is_taken_once() -> None:
    bench = Bench()
    await bench.invite(0)
    await bench.deliver_from_coordinator(Invite(0, 0, 0))
    assert len(bench.node.sent_of(Pull)) == 1


@on_virtual_time
async def test_a_segment_that_arrives_twice_is_used_once() -> None:
    bench = Bench()
    await bench.invite(0)
    await bench.serve(0)
    await bench.serve(0)
    await bench.node.advance(TRAINS_S)
    assert len(bench.node.computed) == 1


@on_virtual_time
async def test_a_newer_invitation_cancels_the_turn_under_way() -> None:
    bench = Bench()
    await bench.invite(0)
    await bench.serve(0)
    await bench.invite(1)
    await bench.node.advance(TRAINS_S)
    assert [pull.turn for pull in bench.node.sent_of(Pull)][:2] == [0, 1]
    assert bench.node.sent_of(Push) == []


@on_virtual_time
async def test_an_older_invitation_is_ignored() -> None:
    bench = Bench()
    await bench.invite(0)
    await bench.invite(2)
    await bench.invite(1)
    assert [pull.turn for pull in bench.node.sent_of(Pull)] == [0, 2]


@on_virtual_time
async def test_an_invitation_ahead_leaves_the_turn_under_way_running() -> None:
    bench = Bench()
    await bench.invite(0)
    await bench.serve(0)
    await bench.invite(1, ahead=True)
    await bench.node.advance(TRAINS_S)
    assert [push.turn for push in bench.node.sent_of(Push)] == [0]
    assert 1 in [pull.turn for pull in bench.node.sent_of(Pull)]


@on_virtual_time
async def test_a_release_cancels_the_turn_and_is_confirmed() -> None:
    bench = Bench()
    await bench.invite(0)
    await bench.serve(0)
    await bench.deliver_from_coordinator(Release(0))
    await bench.node.advance(2 * TRAINS_S)
    assert bench.node.sent_of(Push) == []
    assert bench.node.sent_of(Released) == [Released(0)]


@on_virtual_time
async def test_a_release_of_a_turn_that_is_over_is_confirmed_too() -> None:
    bench = Bench()
    await bench.invite(0)
    await bench.deliver_from_coordinator(Release(7))
    assert bench.node.sent_of(Released) == [Released(7)], "the coordinator waits for it"


@on_virtual_time
async def test_a_release_of_one_turn_only_leaves_an_earlier_one_running() -> None:
    bench = Bench()
    await bench.invite(0)
    await bench.serve(0)
    await bench.invite(1, ahead=True)
    await bench.deliver_from_coordinator(Release(1, only=True))
    await bench.node.advance(TRAINS_S)
    assert [push.turn for push in bench.node.sent_of(Push)] == [0]


@on_virtual_time
async def test_the_loss_of_the_coordinator_cancels_the_turn() -> None:
    bench = Bench()
    await bench.invite(0)
    await bench.deliver_from_coordinator(Lost(COORDINATOR, 1, "connection closed"))
    await bench.node.advance(20 * RETRY_S)
    assert len(bench.node.sent_of(Pull)) == 1


@on_virtual_time
async def test_only_the_coordinator_may_invite_or_stop_a_device() -> None:
    bench = Bench()
    await bench.invite(0)
    await bench.node.deliver("laptop", Invite(5, 5, 5), Release(0), Stop())
    await bench.serve(0)
    await bench.node.advance(TRAINS_S)
    assert [push.turn for push in bench.node.sent_of(Push)] == [0]
    await bench.deliver_from_coordinator(Stop())
    assert bench.node.has_ended


# --- cut transfers ----------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_a_pull_waits_for_its_window() -> None:
    bench = Bench(transfer={"kind": "layer-by-layer", "window": 2})
    await bench.invite(0)
    assert [pull.first for pull in bench.node.sent_of(Pull)] == [0, 1]
    await bench.serve(0, 0, 0)
    assert [pull.first for pull in bench.node.sent_of(Pull)] == [0, 1, 2]


@on_virtual_time
async def test_a_layer_waits_for_its_segment() -> None:
    bench = Bench(transfer="layer-by-layer")
    await bench.invite(0)
    await bench.serve(0, 0, 0)
    await bench.node.advance(TRAINS_S)
    assert bench.node.sent_of(Push) == [], "the forward pass stands at layer 1"
    await bench.serve(0, 1, 1)
    await bench.serve(0, 2, 2)
    await bench.node.advance(TRAINS_S)
    assert bench.node.sent_of(Push) != []


@on_virtual_time
async def test_a_segment_is_pushed_as_soon_as_its_gradient_is_ready() -> None:
    bench = Bench(transfer="layer-by-layer")
    await bench.invite(0)
    for layer in range(LAYERS):
        await bench.serve(0, layer, layer)
    await bench.node.advance(TRAINS_S)
    assert [push.first for push in bench.node.sent_of(Push)] == [2, 1, 0]
    assert bench.node.times_of(Push) == [5.0, 7.0, 9.0]


@on_virtual_time
async def test_with_a_window_of_one_a_push_waits_until_the_one_before_is_accepted() -> None:
    bench = Bench(transfer={"kind": "layer-by-layer", "window": 1}, retry="1 h")
    await bench.invite(0)
    for layer in range(LAYERS):
        await bench.serve(0, layer, layer)
    await bench.node.advance(2 * TRAINS_S)
    assert [push.first for push in bench.node.sent_of(Push)] == [2]
    await bench.deliver_from_coordinator(Accept(0, 2))
    assert [push.first for push in bench.node.sent_of(Push)] == [2, 1]

"""The protocol rules of a device's turn, each checked on a recording node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from potluck.loops.backends import TimingOnlyTrainer
from potluck.loops.batch_source import ShardBatchSource
from potluck.loops.device_costs import DeviceCosts
from potluck.loops.device_estimates import DeviceEstimates, LinkPrior
from potluck.loops.messages import Accept, Invite, Lost, Message, Pull, Push, Release, Released, Segment, Stop
from potluck.loops.node import COORDINATOR, MeasuredTransfer
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

    async def serve(
        self,
        turn: int,
        first: int = 0,
        last: int = LAYERS - 1,
        transfer: MeasuredTransfer | None = None,
        queued: bool = False,
    ) -> None:
        """Send some layers of the model."""
        segment = Segment(Payload(100), turn=turn, first=first, last=last, queued=queued)
        await self.node.deliver(COORDINATOR, segment, transfer=transfer)

    @property
    def estimates(self) -> DeviceEstimates:
        return self.device.context.estimates


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
async def test_layers_of_a_draft_come_unasked_and_are_asked_for_only_if_they_do_not() -> None:
    bench = Bench(transfer="duplex")
    await bench.invite(0)
    asked = len(bench.node.sent_of(Pull))
    await bench.invite(1, ahead=True)
    assert len(bench.node.sent_of(Pull)) == asked
    await bench.node.advance(RETRY_S)
    assert 1 in [pull.turn for pull in bench.node.sent_of(Pull)[asked:]]


@on_virtual_time
async def test_a_segment_that_arrives_together_with_its_invitation_is_used() -> None:
    bench = Bench()
    bench.node.start(bench.device.main())
    segment = Segment(Payload(100), turn=0, first=0, last=LAYERS - 1)
    await bench.deliver_from_coordinator(Invite(0, 0, 0, ahead=True), segment)
    await bench.node.advance(TRAINS_S)
    assert [push.turn for push in bench.node.sent_of(Push)] == [0]
    assert bench.node.sent_of(Pull) == []


@on_virtual_time
@pytest.mark.parametrize(
    ("told", "pushed"),
    [
        (((2, 2), (0, 1)), [(2, 2), (0, 1)]),
        (((0, 0), (1, 2)), [(0, 0), (1, 2)]),
        (((0, 0), (2, 2)), None),  # a layer is missing
        (((0, 1), (1, 2)), None),  # a layer twice
        (((0, 2), (3, 3)), None),  # a layer that does not exist
    ],
)
async def test_a_device_pushes_in_the_order_that_it_is_told_if_that_covers_all_layers(
    told: tuple[tuple[int, int], ...], pushed: list[tuple[int, int]] | None
) -> None:
    bench = Bench(transfer="layer-by-layer")
    await bench.invite(0, segments=told)
    for layer in range(LAYERS):
        await bench.serve(0, layer, layer)
    await bench.node.advance(2 * TRAINS_S)
    expected = [(2, 2), (1, 1), (0, 0)] if pushed is None else pushed
    first_sent = dict.fromkeys((push.first, push.last) for push in bench.node.sent_of(Push))
    assert list(first_sent)[: len(expected)] == expected


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


@on_virtual_time
async def test_the_link_is_learnt_from_what_the_receivers_measured() -> None:
    """The device measures what it receives; how its update arrived it learns from the coordinator, not from `send`."""
    bench = Bench(transfer="layer-by-layer", retry=100.0)
    await bench.invite(0)
    for layer in range(LAYERS):
        await bench.node.advance(1.0)
        await bench.serve(0, layer, layer, MeasuredTransfer(1_000_000, 0.5))
    await bench.node.advance(TRAINS_S)
    assert bench.estimates.up.seconds_per_byte == 1e-6
    await bench.deliver_from_coordinator(*(Accept(0, layer) for layer in range(LAYERS)))
    await bench.invite(1, pushed=((1_000_000, 1000.0),))
    assert bench.estimates.down.predicted_s(1e6) == pytest.approx(0.5, rel=0.01)
    assert bench.estimates.up.predicted_s(1e6) == pytest.approx(1e3, rel=0.02)
    assert bench.estimates.round_trip == pytest.approx(0.5)


@on_virtual_time
async def test_layers_are_timed_one_by_one_where_transfers_are_cut() -> None:
    bench = Bench(transfer="layer-by-layer")
    await bench.invite(0)
    for layer in range(LAYERS):
        await bench.serve(0, layer, layer)
    await bench.node.advance(TRAINS_S)
    assert bench.estimates.layers.turns == 1
    predicted = bench.estimates.layers.predicted_s(COSTS.pass_seconds(10))
    assert predicted.forward == pytest.approx([1.0] * LAYERS)
    assert predicted.backward == pytest.approx([2.0] * LAYERS)


@on_virtual_time
async def test_a_gap_before_a_segment_that_was_ready_counts_as_its_overhead() -> None:
    bench = Bench(transfer="layer-by-layer")
    await bench.invite(0)
    for layer in range(LAYERS):
        await bench.node.advance(0.3)
        await bench.serve(0, layer, layer, MeasuredTransfer(1_000_000, 0.1), queued=layer > 0)
    await bench.node.advance(TRAINS_S)
    await bench.deliver_from_coordinator(*(Accept(0, layer) for layer in range(LAYERS)))
    assert bench.estimates.down.predicted_s(1e6) == pytest.approx((0.1 + 0.3 + 0.3) / 3, rel=0.01)

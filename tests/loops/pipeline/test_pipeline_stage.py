"""The protocol rules of a pipeline's device and its stage, each checked on a recording node."""

from __future__ import annotations

from typing import Any

import pytest

from potluck.loops.messages import Message, Stop
from potluck.loops.node import COORDINATOR
from potluck.loops.pipeline import messages
from potluck.loops.pipeline.layer_sources import LayerOrigin
from potluck.loops.pipeline.link_estimates import ReceptionLog
from potluck.loops.pipeline.pipeline_device import PipelineDevice
from potluck.loops.pipeline.pipeline_stage import StageContext
from potluck.loops.pipeline.version_store import VersionStore
from potluck.payload import Payload
from tests.loops.pipeline.timing_only_pipeline import COSTS, SIZES, RefusingStages, settings_of
from tests.loops.recording_node import RecordingNode, on_virtual_time

FLOPS = 10.0
FORWARD_S, BACKWARD_S = 2.0, 4.0  # of two layers and ten samples
RETRY_S = 2.0
ORDER = ("a", "b", "c")  # layers 0; 1 and 2; 3
BEFORE, AFTER = "a", "c"


class Bench:
    """Device b, which is the middle stage of three."""

    def __init__(self, window: int = 2, **settings: Any) -> None:
        self.node = RecordingNode("b")
        self._window = window
        context = StageContext(
            self.node, settings_of(**settings), RefusingStages(), COSTS, FLOPS, SIZES, VersionStore("b"), ReceptionLog()
        )
        self.device = PipelineDevice(context)

    async def deliver_from_coordinator(self, *messages: Message) -> None:
        await self.node.deliver(COORDINATOR, *messages)

    async def assign(self, term: int = 1, keepers: tuple[str, ...] = (), stride: int = 0) -> None:
        """Begin a term and hand out the layers, which come from the coordinator."""
        if term == 1:
            self.node.start(self.device.main())
        await self.deliver_from_coordinator(messages.Halt(term, ()))
        origins = (LayerOrigin(COORDINATOR, 1, 2, 0),)
        windows = (self._window + 1, self._window, 1)
        await self.deliver_from_coordinator(
            messages.Assign(term, (1, 3), ORDER, windows, stride, keepers, 0, 0, origins)
        )
        await self.deliver_from_coordinator(messages.Piece(Payload(8), term=term, first=1, last=2, version=0))

    async def begin(self, **fields: Any) -> None:
        await self.assign(**fields)
        await self.deliver_from_coordinator(messages.Begin(fields.get("term", 1), 0, 8))

    async def activate(self, *batches: int, term: int = 1, nbytes: int = 100, sender: str = BEFORE) -> None:
        for batch in batches:
            message = messages.Activation(Payload(nbytes), term=term, part=batch, version=0)
            await self.node.deliver(sender, message)

    async def send_gradients(self, *batches: int, sender: str = AFTER) -> None:
        for batch in batches:
            await self.node.deliver(sender, messages.Gradient(Payload(100), term=1, part=batch))

    def passes(self) -> list[str]:
        return [work.label for work in self.node.computed]


# --- terms ------------------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_a_halt_is_answered_with_the_inventory_each_time() -> None:
    bench = Bench()
    await bench.assign()
    await bench.deliver_from_coordinator(messages.Halt(1, ()))
    inventories = bench.node.sent_of(messages.Inventory)
    assert inventories[0].held == ()
    assert [(layers.first, layers.last, layers.version) for layers in inventories[1].held] == [(1, 2, 0)]


@on_virtual_time
async def test_layers_are_fetched_until_they_arrive_and_then_the_stage_is_ready() -> None:
    bench = Bench()
    bench.node.start(bench.device.main())
    origins = (LayerOrigin("a", 1, 2, 0),)
    await bench.deliver_from_coordinator(
        messages.Halt(1, ()), messages.Assign(1, (1, 3), ORDER, (3, 2, 1), 0, (), 0, 0, origins)
    )
    await bench.node.advance(3 * RETRY_S)
    assert bench.node.times_of(messages.Fetch, "a") == [0.0, RETRY_S, 3 * RETRY_S]
    assert bench.node.sent_of(messages.Ready) == []
    await bench.node.deliver("a", messages.Piece(Payload(8), term=1, first=1, last=2, version=0))
    assert bench.node.sent_of(messages.Ready) == [messages.Ready(1)]


@on_virtual_time
async def test_an_assignment_that_is_repeated_is_confirmed_again() -> None:
    bench = Bench()
    await bench.assign()
    await bench.deliver_from_coordinator(messages.Assign(1, (1, 3), ORDER, (3, 2, 1), 0, (), 0, 0, ()))
    assert bench.node.sent_of(messages.Ready) == [messages.Ready(1)] * 2


@on_virtual_time
async def test_a_message_of_an_older_term_is_dropped() -> None:
    bench = Bench()
    await bench.assign()
    await bench.begin(term=2)
    await bench.activate(0, term=1)
    assert bench.node.computed == []
    await bench.activate(0, term=2)
    assert bench.passes() == ["forward"]


@on_virtual_time
async def test_a_halt_of_an_older_term_is_ignored() -> None:
    bench = Bench()
    await bench.assign()
    await bench.begin(term=2)
    answered = len(bench.node.sent_of(messages.Inventory))
    await bench.deliver_from_coordinator(messages.Halt(1, ()))
    assert len(bench.node.sent_of(messages.Inventory)) == answered


@on_virtual_time
async def test_a_new_term_drops_the_batches_in_flight() -> None:
    bench = Bench()
    await bench.begin()
    await bench.activate(0)
    await bench.deliver_from_coordinator(messages.Halt(2, ()))
    await bench.node.advance(FORWARD_S)
    assert bench.node.sent_of(messages.Activation) == []


@on_virtual_time
async def test_only_the_coordinator_gives_orders() -> None:
    bench = Bench()
    await bench.begin()
    await bench.node.deliver(BEFORE, messages.Halt(9, ()), messages.Close(1, 0), messages.Finish(1), Stop())
    await bench.activate(0)
    assert bench.passes() == ["forward"]


# --- the schedule -----------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_nothing_is_computed_before_the_range_begins() -> None:
    bench = Bench()
    await bench.assign()
    await bench.activate(0)
    assert bench.node.computed == []
    await bench.deliver_from_coordinator(messages.Begin(1, 0, 8))
    assert bench.passes() == ["forward"]


@on_virtual_time
async def test_a_forward_waits_for_its_window() -> None:
    bench = Bench(window=2)
    await bench.begin()
    await bench.activate(0, 1, 2)
    await bench.node.advance(3 * FORWARD_S)
    assert bench.passes() == ["forward", "forward"]
    await bench.send_gradients(0)
    await bench.node.advance(BACKWARD_S)
    assert bench.passes() == ["forward", "forward", "backward", "forward"]


@on_virtual_time
async def test_batches_are_forwarded_in_order_whichever_arrives_first() -> None:
    bench = Bench()
    await bench.begin()
    await bench.activate(1)
    assert bench.node.computed == []
    await bench.activate(0)
    await bench.node.advance(2 * FORWARD_S)
    assert [activation.part for activation in bench.node.sent_of(messages.Activation, AFTER)] == [0, 1]


@on_virtual_time
async def test_an_applied_batch_is_reported_and_its_gradient_sent_back() -> None:
    bench = Bench(window=1)
    await bench.begin()
    await bench.activate(0)
    await bench.node.advance(FORWARD_S)
    await bench.send_gradients(0)
    await bench.node.advance(BACKWARD_S)
    assert [gradient.part for gradient in bench.node.sent_of(messages.Gradient, BEFORE)] == [0]
    assert bench.node.sent_of(messages.Report)[-1].applied == 1
    assert bench.node.sent_of(messages.Report)[-1].seconds == FORWARD_S + BACKWARD_S


@on_virtual_time
async def test_a_range_that_is_announced_again_is_not_run_again() -> None:
    bench = Bench()
    await bench.begin()
    await bench.activate(0)
    await bench.deliver_from_coordinator(messages.Begin(1, 0, 8))
    await bench.activate(0)
    await bench.node.advance(FORWARD_S)
    assert bench.passes() == ["forward"]
    assert [report.applied for report in bench.node.sent_of(messages.Report)] == [0, 0], "it is answered each time"


# --- exchange with the neighbours -------------------------------------------------------------------------------------


@on_virtual_time
async def test_an_activation_that_is_missed_is_asked_for_again() -> None:
    bench = Bench()
    await bench.begin()
    await bench.node.advance(RETRY_S)
    assert bench.node.sent_of(messages.Resend, BEFORE) == [messages.Resend(1, "Activation", 0)]


@on_virtual_time
async def test_what_was_sent_is_sent_again_to_the_neighbour_that_misses_it() -> None:
    bench = Bench()
    await bench.begin()
    await bench.activate(0)
    await bench.node.advance(FORWARD_S)
    await bench.node.deliver(AFTER, messages.Resend(1, "Activation", 0))
    assert [activation.part for activation in bench.node.sent_of(messages.Activation, AFTER)] == [0, 0]
    await bench.node.deliver(BEFORE, messages.Resend(1, "Activation", 0), messages.Resend(1, "Activation", 1))
    assert len(bench.node.sent_of(messages.Activation)) == 2, "not to another one, and not what was never made"


@on_virtual_time
async def test_what_is_still_in_flight_is_not_sent_again() -> None:
    bench = Bench()
    await bench.begin()
    bench.node.holds_sends = True
    await bench.activate(0)
    await bench.node.advance(FORWARD_S)
    await bench.node.deliver(AFTER, messages.Resend(1, "Activation", 0))
    assert len(bench.node.sent_of(messages.Activation, AFTER)) == 1


@on_virtual_time
async def test_an_activation_that_arrives_twice_is_computed_once() -> None:
    bench = Bench()
    await bench.begin()
    await bench.activate(0, 0)
    await bench.node.advance(FORWARD_S)
    await bench.activate(0)
    await bench.node.advance(FORWARD_S)
    assert bench.passes() == ["forward"]


@on_virtual_time
async def test_an_activation_from_another_device_than_the_stage_before_is_ignored() -> None:
    bench = Bench()
    await bench.begin()
    await bench.activate(0, sender=AFTER)
    assert bench.node.computed == []


@on_virtual_time
async def test_an_activation_that_cannot_be_used_is_reported_with_its_sender() -> None:
    bench = Bench()
    await bench.begin()
    await bench.activate(0, nbytes=13)
    assert bench.node.sent_of(messages.Refused, COORDINATOR) == [messages.Refused(1, BEFORE, "13 bytes")]
    assert bench.node.computed == []


@on_virtual_time
async def test_an_inquiry_is_answered_with_what_the_stage_awaits_and_has_sent() -> None:
    bench = Bench()
    await bench.begin()
    await bench.activate(0)
    await bench.node.advance(FORWARD_S)
    await bench.deliver_from_coordinator(messages.Inquire(1))
    assert bench.node.sent_of(messages.Doing) == [messages.Doing(1, ((BEFORE, "Activation", 1),), (("Activation", 0),))]


# --- ends and copies --------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_after_a_death_the_stage_lets_nothing_in_and_says_when_it_is_stuck() -> None:
    bench = Bench()
    await bench.begin()
    await bench.activate(0)
    await bench.node.advance(FORWARD_S)
    await bench.deliver_from_coordinator(messages.Finish(1))
    await bench.activate(1)
    await bench.node.advance(FORWARD_S)
    assert bench.passes() == ["forward"]
    assert messages.Stuck(1) in bench.node.sent_of(messages.Stuck)


@on_virtual_time
async def test_a_copy_that_is_not_confirmed_is_sent_again() -> None:
    bench = Bench(window=1, replication="incremental")
    await bench.begin(keepers=("b", "c", "a"), stride=1)
    await bench.node.advance(RETRY_S)
    assert [replica.version for replica in bench.node.sent_of(messages.Replica, "c")] == [0, 0]
    await bench.node.deliver("c", messages.Kept(1, 1, 2, 0))
    await bench.node.advance(10 * RETRY_S)
    assert len(bench.node.sent_of(messages.Replica, "c")) == 2


@on_virtual_time
async def test_a_holder_confirms_a_copy_to_its_sender_and_to_the_coordinator() -> None:
    bench = Bench()
    await bench.assign()
    chunk: dict[str, Any] = {"term": 1, "first": 0, "last": 0, "version": 0, "made": 0, "count": 2}
    await bench.node.deliver("a", messages.Replica(Payload(4), place=0, **chunk))
    assert bench.node.sent_of(messages.Kept) == []
    await bench.node.deliver("a", messages.Replica(Payload(4), place=1, **chunk))
    assert [sent.to for sent in bench.node.sent if isinstance(sent.message, messages.Kept)] == ["a", COORDINATOR]


# --- layer times ------------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_every_layer_is_measured_once_on_request() -> None:
    bench = Bench()
    bench.node.start(bench.device.main())
    await bench.deliver_from_coordinator(messages.Halt(1, ()))
    await bench.deliver_from_coordinator(messages.Measure(1))
    await bench.deliver_from_coordinator(messages.Measure(1))
    assert bench.node.sent_of(messages.Measured) == []
    assert len(bench.node.sent_of(messages.Doing)) == 1, "it is still measuring"
    await bench.node.advance(20.0)
    (measured,) = bench.node.sent_of(messages.Measured)
    assert measured.forward == pytest.approx((1.0,) * 4)
    assert measured.backward == pytest.approx((2.0,) * 4)
    await bench.deliver_from_coordinator(messages.Measure(1))
    assert bench.node.sent_of(messages.Measured) == [measured, measured]


@on_virtual_time
async def test_a_report_has_the_seconds_of_each_layer_of_the_stage() -> None:
    bench = Bench(window=1)
    await bench.begin()
    await bench.activate(0)
    await bench.node.advance(FORWARD_S)
    await bench.send_gradients(0)
    await bench.node.advance(BACKWARD_S)
    (report,) = [report for report in bench.node.sent_of(messages.Report) if report.applied == 1]
    assert report.layers == pytest.approx((3.0, 3.0))
    assert report.seconds == pytest.approx(FORWARD_S + BACKWARD_S)

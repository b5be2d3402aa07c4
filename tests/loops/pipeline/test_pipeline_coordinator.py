"""The protocol rules of the pipeline's coordinator, each checked on a recording node."""

from __future__ import annotations

from typing import Any

import pytest

from potluck.fleet import Fleet
from potluck.journal import Scalar
from potluck.loops.messages import Joined, Lost, Message, Stop
from potluck.loops.pipeline import messages
from potluck.loops.pipeline.layer_sources import HeldLayers
from potluck.loops.pipeline.model_archive import ModelArchive
from potluck.loops.pipeline.pipeline_context import PipelineContext
from potluck.loops.pipeline.pipeline_coordinator import PipelineCoordinator
from potluck.loops.pipeline.pipeline_planner import PipelinePlanner
from potluck.loops.run_progress import RunProgress
from potluck.payload import Payload
from potluck.settings import decode_settings
from tests.loops.pipeline.timing_only_pipeline import BATCH, COSTS, RefusingStages, settings_of
from tests.loops.recording_node import FixedPolicy, RecordingNode, on_virtual_time

RETRY_S = 2.0
DEVICES = ("d0", "d1")  # d0 holds the data


class Bench:
    """A coordinator of two devices with two layers each."""

    def __init__(self, policy: FixedPolicy | None = None, **settings: Any) -> None:
        self.node = RecordingNode("coordinator")
        self.progress = RunProgress()
        self.policy = policy or FixedPolicy()
        pipeline = settings_of(partition={"kind": "cuts", "after": [1]}, **settings)
        fleet = decode_settings({"devices": [{"name": name, "flops": 100, "link": "lan"} for name in DEVICES]}, Fleet)
        stages = RefusingStages()
        archive = ModelArchive(stages, COSTS.layer_count, 0, stages.initial_weights())
        planner = PipelinePlanner(fleet.members, COSTS, BATCH, pipeline)
        context = PipelineContext(pipeline, DEVICES, planner, archive, self.policy, self.progress, BATCH)
        self.coordinator = PipelineCoordinator(self.node, context)

    async def join(self, *devices: str) -> None:
        """Let devices join; the first ones are connected before the run begins."""
        for device in devices:
            self.node.queue(device, Joined(device, 1))
        if not self.node.has_started:
            self.node.start(self.coordinator.main())
        await self.node.advance()

    async def say(self, device: str, *messages: Message, incarnation: int = 1) -> None:
        await self.node.deliver(device, *messages, incarnation=incarnation)

    @property
    def term(self) -> int:
        return self.node.sent_of(messages.Halt)[-1].term

    async def run_term(self, *devices: str) -> None:
        """Let devices enter the current term and get ready."""
        for device in devices:
            await self.say(device, messages.Inventory(self.term, ()))
        for device in devices:
            await self.say(device, messages.Ready(self.term))

    async def start(self) -> None:
        await self.join(*DEVICES)
        await self.run_term(*DEVICES)

    async def report(self, applied: int, *devices: str) -> None:
        for device in devices:
            await self.say(device, messages.Report(self.term, applied, 0.1))


# --- terms ------------------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_no_term_begins_before_a_device_that_holds_the_data_is_connected() -> None:
    bench = Bench()
    await bench.join("d1")
    assert bench.node.sent == []
    await bench.join("d0")
    assert [sent.to for sent in bench.node.sent] == ["d0", "d1"]


@on_virtual_time
async def test_a_halt_is_repeated_until_it_is_answered() -> None:
    bench = Bench()
    await bench.join(*DEVICES)
    await bench.say("d0", messages.Inventory(1, ()))
    await bench.node.advance(3 * RETRY_S)
    assert bench.node.times_of(messages.Halt, "d1") == [0.0, RETRY_S, 3 * RETRY_S]
    assert bench.node.times_of(messages.Halt, "d0") == [0.0]


@on_virtual_time
async def test_a_term_begins_without_a_device_that_does_not_answer() -> None:
    bench = Bench()
    await bench.join(*DEVICES)
    await bench.say("d0", messages.Inventory(1, ()))
    await bench.node.advance(4 * RETRY_S)
    assert [assign.order for assign in bench.node.sent_of(messages.Assign)] == [("d0",)]


@on_virtual_time
async def test_batches_begin_only_when_every_stage_is_ready() -> None:
    bench = Bench()
    await bench.join(*DEVICES)
    for device in DEVICES:
        await bench.say(device, messages.Inventory(1, ()))
    await bench.say("d0", messages.Ready(1))
    assert bench.node.sent_of(messages.Begin) == []
    await bench.say("d1", messages.Ready(1))
    assert [sent.to for sent in bench.node.sent if isinstance(sent.message, messages.Begin)] == ["d0", "d1"]


@on_virtual_time
async def test_the_central_device_measures_the_layers_once_before_the_first_layout() -> None:
    bench = Bench(layer_costs="measured")
    await bench.join(*DEVICES)
    for device in DEVICES:
        await bench.say(device, messages.Inventory(1, ()))
    assert [sent.to for sent in bench.node.sent if isinstance(sent.message, messages.Measure)] == ["d0"]
    assert bench.node.sent_of(messages.Assign) == []
    await bench.say("d0", messages.Measured(1, (1.0, 2.0, 3.0, 4.0), (2.0, 4.0, 6.0, 8.0)))
    seconds = bench.coordinator._context.planner.compute.layer_seconds("d1")
    assert seconds == pytest.approx([3.0, 6.0, 9.0, 12.0], rel=0.01)
    assert len(bench.node.sent_of(messages.Assign)) == 2
    await bench.say("d0", messages.Ready(1))
    await bench.say("d1", messages.Ready(1), messages.Missing(1))
    await bench.run_term(*DEVICES)
    assert len(bench.node.sent_of(messages.Measure)) == 1, "a later term does not measure again"


@on_virtual_time
async def test_a_run_goes_on_without_a_measurement_that_never_comes() -> None:
    bench = Bench(layer_costs="measured")
    await bench.join(*DEVICES)
    for device in DEVICES:
        await bench.say(device, messages.Inventory(1, ()))
    await bench.node.advance(200 * RETRY_S)
    assert len(bench.node.sent_of(messages.Assign)) >= 2


@on_virtual_time
async def test_a_measurement_of_another_model_is_refused() -> None:
    bench = Bench(layer_costs="measured")
    await bench.join(*DEVICES)
    for device in DEVICES:
        await bench.say(device, messages.Inventory(1, ()))
    await bench.say("d0", messages.Measured(1, (1.0,), (1.0,)))
    assert "has not measured the 4 layers" in bench.node.sent_of(messages.Refused)[-1].reason


@on_virtual_time
async def test_a_message_of_an_older_term_is_dropped() -> None:
    bench = Bench()
    await bench.start()
    await bench.say("d0", messages.Report(0, 1), messages.Missing(0))
    await bench.report(1, "d1")
    assert bench.progress.round == 0
    assert bench.term == 1


@on_virtual_time
async def test_a_message_of_an_earlier_incarnation_is_dropped() -> None:
    bench = Bench()
    await bench.start()
    await bench.report(1, "d1")
    await bench.say("d0", messages.Report(1, 1), incarnation=0)
    assert bench.progress.round == 0


@on_virtual_time
async def test_the_loss_of_a_stage_begins_a_new_term_without_it() -> None:
    bench = Bench()
    await bench.start()
    await bench.say("d1", Lost("d1", 1, "connection closed"))
    assert bench.term == 2
    await bench.say("d0", messages.Inventory(2, ()))
    assert bench.node.sent_of(messages.Assign)[-1].order == ("d0",)


@on_virtual_time
async def test_a_device_lost_while_a_term_begins_makes_it_begin_again() -> None:
    bench = Bench()
    await bench.join(*DEVICES)
    await bench.say("d1", Lost("d1", 1, "connection closed"))
    assert bench.term == 2
    assert bench.node.sent_of(messages.Assign) == []


@on_virtual_time
async def test_layers_that_a_device_misses_make_a_new_term() -> None:
    bench = Bench()
    await bench.start()
    await bench.say("d1", messages.Missing(1))
    assert bench.term == 2


@on_virtual_time
async def test_a_new_term_continues_from_the_newest_version_that_is_complete() -> None:
    bench = Bench()
    await bench.start()
    await bench.report(2, "d0")
    await bench.report(3, "d1")
    await bench.say("d1", messages.Missing(1))
    await bench.say("d0", messages.Inventory(2, tuple(HeldLayers("d0", 0, 1, version, 1) for version in (1, 2))))
    await bench.say("d1", messages.Inventory(2, tuple(HeldLayers("d1", 2, 3, version, 1) for version in (2, 3))))
    assert {assign.version for assign in bench.node.sent_of(messages.Assign) if assign.term == 2} == {2}


# --- batches ----------------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_a_batch_is_committed_once_every_stage_has_applied_it() -> None:
    bench = Bench()
    await bench.start()
    await bench.report(1, "d1")
    assert bench.progress.round == 0
    await bench.report(1, "d0")
    assert bench.progress.round == 1
    assert [event.fields["batch"] for event in bench.node.events("committed")] == [0]


@on_virtual_time
async def test_a_report_that_arrives_twice_is_counted_once() -> None:
    bench = Bench()
    await bench.start()
    await bench.report(1, "d0", "d0", "d1", "d1", "d0")
    assert bench.progress.round == 1
    assert len(bench.node.events("committed")) == 1


@on_virtual_time
async def test_a_range_is_announced_again_while_nothing_is_heard() -> None:
    bench = Bench()
    await bench.start()
    await bench.node.advance(2 * RETRY_S)
    first, again, third = bench.node.times_of(messages.Begin, "d1")
    assert (first, again) == (0.0, RETRY_S)
    assert again < third <= 2 * RETRY_S, "at the latest; an inquiry may come first"


@on_virtual_time
async def test_an_overdue_batch_makes_the_coordinator_ask_and_exclude_silent_stages() -> None:
    bench = Bench()
    await bench.start()
    await bench.node.advance(5 * RETRY_S)
    assert {sent.to for sent in bench.node.sent if isinstance(sent.message, messages.Inquire)} == set(DEVICES)
    for _ in range(10):
        if bench.term > 1:
            break
        await bench.say("d0", messages.Doing(bench.term))
        await bench.node.advance(RETRY_S)
    assert [(event.node, event.fields["reason"]) for event in bench.node.events("left out")] == [
        ("d1", "does not answer")
    ]
    assert bench.term == 2


@on_virtual_time
async def test_at_the_end_the_model_is_archived_saved_and_the_devices_stopped() -> None:
    bench = Bench(FixedPolicy(rounds=1))
    await bench.start()
    await bench.report(1, *DEVICES)
    for device, first in (("d0", 0), ("d1", 2)):
        assert bench.node.sent_of(messages.Fetch, device) == [messages.Fetch(1, first, first + 1, 1)]
        chunk = messages.Piece(Payload(8), term=1, first=first, last=first + 1, version=1)
        await bench.say(device, chunk)
    assert bench.policy.saved_rounds == [0, 1]
    assert bench.node.result.status == "done"
    assert [sent.to for sent in bench.node.sent if isinstance(sent.message, Stop)] == ["d0", "d1"]


# --- refusals ---------------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_a_refused_device_is_told_why_and_stays_out_when_it_returns() -> None:
    bench = Bench()
    await bench.start()
    await bench.say("d1", messages.Report(1, 10**6))
    reason = "it reports batch 1000000 after 0.0 s and 0 bytes"
    assert bench.node.sent_of(messages.Refused, "d1") == [messages.Refused(1, "d1", reason)]
    await bench.say("d1", Lost("d1", 1, "left"), Joined("d1", 2))
    assert [refused.reason for refused in bench.node.sent_of(messages.Refused, "d1")] == [reason] * 2
    assert bench.node.sent_of(messages.Halt, "d1")[-1].term == 1


@on_virtual_time
async def test_bytes_that_no_stage_can_have_sent_are_refused() -> None:
    """They would have used up the run's traffic budget."""
    bench = Bench()
    await bench.start()
    await bench.say("d1", messages.Report(1, 1, 0.1, None, 2**53))
    assert bench.node.events("refused")[0].node == "d1"
    assert bench.progress.traffic_bytes < 2**40


@on_virtual_time
async def test_a_loss_that_is_no_loss_is_not_recorded() -> None:
    bench = Bench()
    await bench.start()
    for loss in (float("nan"), float("inf"), 1e308):
        await bench.say("d1", messages.Report(1, 1, 0.1, loss))
    await bench.say("d0", messages.Report(1, 1, 0.1, 2.0))
    assert bench.progress.round == 1
    assert [record for record in bench.node.records if isinstance(record, Scalar) and record.name == "loss"] == []


@on_virtual_time
async def test_what_one_stage_cannot_use_excludes_the_stage_that_sent_it() -> None:
    bench = Bench(sources=["d1"])
    await bench.start()
    await bench.say("d0", messages.Refused(1, "d1", "13 bytes"))
    assert [event.node for event in bench.node.events("refused")] == ["d1"]


@on_virtual_time
async def test_the_only_device_that_holds_the_data_is_not_excluded_on_another_ones_word() -> None:
    bench = Bench()
    await bench.start()
    await bench.say("d1", messages.Refused(1, "d0", "13 bytes"))
    assert [event.node for event in bench.node.events("refused")] == ["d1"]


@on_virtual_time
async def test_an_inventory_that_cannot_be_true_is_refused() -> None:
    bench = Bench()
    await bench.join(*DEVICES)
    await bench.say("d1", messages.Inventory(1, (HeldLayers("d1", 0, 3, 50, 1),)))
    assert bench.node.events("refused")[0].fields["reason"] == "it says that d1 has version 50 of term 1"


# --- stalls -----------------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_a_stalled_run_names_the_stages_it_waits_for() -> None:
    bench = Bench(patience="10 s", retry="1 min")
    await bench.start()
    await bench.report(1, "d0")
    await bench.node.advance(11.0)
    assert bench.node.result.reason == "no progress for 10 s: still waiting for d1 at batch 0"


@on_virtual_time
async def test_a_run_that_stalls_while_a_term_begins_names_the_devices_it_waits_for() -> None:
    bench = Bench(patience="10 s", retry="1 min")
    await bench.join(*DEVICES)
    await bench.say("d0", messages.Inventory(1, ()))
    await bench.node.advance(11.0)
    assert bench.node.result.reason == "no progress for 10 s: still waiting for d1"


@on_virtual_time
async def test_without_the_data_a_run_names_the_devices_that_hold_it() -> None:
    bench = Bench(patience="10 s")
    await bench.join("d1")
    await bench.node.advance(11.0)
    assert bench.node.result.reason == (
        "no progress for 10 s: d0 holds the data and is gone; the run can be resumed from batch 0"
    )

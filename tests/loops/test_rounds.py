"""The protocol rules of the rounds loop's coordinator, each checked on a recording node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from potluck.loops.backends import TimingOnlyServer
from potluck.loops.device_costs import DeviceCosts
from potluck.loops.messages import Accept, Holdings, Invite, Joined, Lost, Pull, Push, Release, Released, Segment, Stop
from potluck.loops.rounds import RoundsCoordinator
from potluck.loops.rounds_context import RoundsContext
from potluck.loops.run_progress import RunProgress
from potluck.loops.settings import Rounds
from potluck.loops.turn_sizing import SampleLimit
from potluck.model.update_merging import FULL_LENGTH, UpdateNorm
from potluck.payload import Payload
from potluck.settings import decode_settings
from tests.loops.recording_node import FixedPolicy, RecordingNode, on_virtual_time

LAYERS = 2
COSTS = DeviceCosts([1.0] * LAYERS, [2.0] * LAYERS, [100] * LAYERS, [10] * LAYERS)
RETRY_S = 5.0  # the default of `rounds.retry`


class RecordingServer(TimingOnlyServer):
    """Counts what is merged."""

    def __init__(self) -> None:
        super().__init__(lambda identity: COSTS)
        self.merged: list[int] = []  # the samples of each update, in order
        self.staleness: list[int] = []
        self.steps = 0

    def add_update(
        self, segments: Sequence[Any], submodel: Any, samples: int, staleness: int, scale: UpdateNorm = FULL_LENGTH
    ) -> None:
        self.merged.append(samples)
        self.staleness.append(staleness)

    def step(self, lr: float) -> bool:
        self.steps += 1
        return True


class Bench:
    """A coordinator on a recording node."""

    def __init__(self, policy: FixedPolicy | None = None, **settings: Any) -> None:
        self.node = RecordingNode("coordinator")
        self.server = RecordingServer()
        self.policy = policy or FixedPolicy()
        self.progress = RunProgress()
        expected_s = {"a": 1.0, "b": 2.0, "c": 3.0}
        self.context = RoundsContext(
            decode_settings(settings, Rounds), self.server, LAYERS, lambda device: expected_s[device],
            self._sample_limit, self.policy, self.progress,
        )  # fmt: skip

    @staticmethod
    def _sample_limit(device: str, declared: int | None, since: float, now: float) -> SampleLimit:
        return SampleLimit(100, 100) if declared is None else SampleLimit(declared, min(declared, 100))

    async def start(self, *devices: str) -> None:
        """Begin with these devices connected."""
        self.node.start(RoundsCoordinator(self.node, self.context).main())
        for device in devices:
            await self.node.deliver(device, Joined(device, 1))

    async def start_with(self, *devices: str) -> None:
        """Begin with all of these in the first round."""
        for device in devices:
            await self.node.deliver(device, Joined(device, 1))
        self.node.start(RoundsCoordinator(self.node, self.context).main())
        await self.node.advance(0.0)

    def turn_of(self, device: str) -> int:
        return self.node.sent_of(Invite, device)[-1].turn

    async def push(self, device: str, samples: int = 10, first: int = 0, last: int = LAYERS - 1, **fields: Any) -> None:
        """Let a device send its update, or some layers of it."""
        turn = fields.pop("turn", None)
        message = Push(
            Payload(10), turn=self.turn_of(device) if turn is None else turn, first=first, last=last,
            samples=samples, loss=1.0,
        )  # fmt: skip
        await self.node.deliver(device, message, **fields)


# --- invite -----------------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_no_device_is_invited_before_enough_are_connected() -> None:
    bench = Bench(least=2)
    await bench.start("a")
    assert bench.node.sent == []
    await bench.node.deliver("b", Joined("b", 1))
    assert [sent.to for sent in bench.node.sent] == ["a", "b"]


@on_virtual_time
async def test_an_invitation_is_repeated_until_it_is_answered() -> None:
    bench = Bench()
    await bench.start("a")
    await bench.node.advance(3.5 * RETRY_S)
    assert bench.node.times_of(Invite, "a") == [0.0, RETRY_S, 3 * RETRY_S]
    assert len({invite.turn for invite in bench.node.sent_of(Invite)}) == 1, "the same turn each time"
    await bench.node.deliver("a", Pull(bench.turn_of("a"), 0, 1))
    await bench.node.advance(20 * RETRY_S)
    assert len(bench.node.times_of(Invite, "a")) == 3


@on_virtual_time
async def test_a_device_that_joins_during_a_round_waits_for_the_next() -> None:
    bench = Bench()
    await bench.start("a")
    await bench.node.deliver("b", Joined("b", 1))
    assert bench.node.sent_to("b") == []
    await bench.push("a")
    assert [invite.round for invite in bench.node.sent_of(Invite, "b")] == [1]


# --- collect ----------------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_a_pull_that_is_repeated_while_its_answer_is_in_flight_is_not_answered_twice() -> None:
    bench = Bench()
    await bench.start("a")
    bench.node.holds_sends = True
    pull = Pull(bench.turn_of("a"), 0, 0)
    await bench.node.deliver("a", pull, pull)
    assert len(bench.node.sent_of(Segment)) == 1
    bench.node.held.pop().set_result(None)
    await bench.node.deliver("a", pull)
    assert len(bench.node.sent_of(Segment)) == 2, "it may have been lost"


@on_virtual_time
async def test_a_pull_of_layers_that_do_not_exist_is_not_answered() -> None:
    bench = Bench()
    await bench.start("a")
    turn = bench.turn_of("a")
    await bench.node.deliver("a", Pull(turn, 0, LAYERS), Pull(turn, -1, 0), Pull(turn, 1, 0))
    assert bench.node.sent_of(Segment) == []


@on_virtual_time
async def test_a_round_is_committed_when_every_invited_device_has_answered() -> None:
    bench = Bench()
    await bench.start("a")
    await bench.push("a")
    await bench.node.deliver("b", Joined("b", 1))
    assert bench.progress.round == 1
    await bench.push("a")
    assert bench.progress.round == 2
    await bench.push("a")
    assert bench.progress.round == 2, "b has not answered"
    await bench.push("b")
    assert bench.progress.round == 3


@on_virtual_time
async def test_an_update_that_arrives_twice_is_counted_once() -> None:
    bench = Bench(least=2)
    await bench.start("a", "b")
    await bench.push("a", first=0, last=0)
    await bench.push("a", first=0, last=0)
    assert bench.node.sent_of(Accept, "a") == [Accept(bench.turn_of("a"), 0)] * 2, "the first Accept may be lost"
    assert bench.server.merged == []
    await bench.push("a", first=1, last=1)
    await bench.push("a", first=1, last=1)
    await bench.push("b", samples=20)
    assert bench.server.merged == [10, 20]


@on_virtual_time
async def test_updates_are_merged_in_the_expected_order_whichever_arrives_first() -> None:
    bench = Bench(least=3)
    await bench.start("a", "b", "c")
    for device, samples in (("c", 3), ("b", 2), ("a", 1)):
        await bench.push(device, samples=samples)
    assert bench.server.merged == [1, 2, 3]


@on_virtual_time
async def test_an_update_of_an_older_round_is_ignored_and_its_sender_released() -> None:
    bench = Bench()
    await bench.start("a")
    old = bench.turn_of("a")
    await bench.push("a")
    await bench.push("a", samples=99, turn=old)
    assert bench.server.merged == [10]
    assert bench.node.sent_to("a")[-1] == Release(old)


@on_virtual_time
async def test_an_update_of_an_earlier_incarnation_is_ignored() -> None:
    bench = Bench()
    await bench.start("a")
    await bench.push("a", incarnation=0)
    assert bench.server.merged == []
    assert bench.progress.round == 0


@on_virtual_time
async def test_a_device_that_leaves_during_collection_is_not_waited_for() -> None:
    bench = Bench(least=2)
    await bench.start("a", "b")
    await bench.push("b", samples=2)
    await bench.node.deliver("a", Lost("a", 1, "connection closed"))
    assert bench.progress.round == 1
    assert bench.server.merged == [2]


@on_virtual_time
async def test_the_loss_of_an_earlier_incarnation_does_not_end_the_turn_of_the_present_one() -> None:
    bench = Bench()
    await bench.start("a")
    await bench.node.deliver("a", Lost("a", 0, "connection closed"))
    await bench.push("a")
    assert bench.progress.round == 1
    assert bench.node.events("lost") == []


@on_virtual_time
async def test_a_refused_update_is_told_to_its_sender_and_the_round_goes_on() -> None:
    bench = Bench(least=2)
    await bench.start("a", "b")
    turn = bench.turn_of("a")
    await bench.push("a", samples=101)
    reason = "it says that it trained on 101 samples; in a turn it has 1 to 100"
    assert bench.node.sent_to("a")[-1] == Release(turn, only=True, refused=reason)
    assert [event.fields["reason"] for event in bench.node.events("refused")] == [reason]
    await bench.push("b", samples=2)
    assert bench.server.merged == [2]
    assert bench.progress.refused == 1


@on_virtual_time
async def test_an_update_claims_no_more_than_its_device_declared() -> None:
    bench = Bench(least=2)
    bench.node.queue("a", Holdings(7), Holdings(1000))
    await bench.start("a", "b")
    await bench.push("a", samples=8)
    assert "it has 1 to 7" in bench.node.events("refused")[0].fields["reason"], "only the first declaration counts"
    await bench.push("b")
    await bench.push("a", samples=7)
    await bench.push("b", samples=100)
    assert bench.server.merged == [10, 7, 100]


@on_virtual_time
async def test_a_declaration_beyond_what_is_known_counts_only_as_far_as_it_is_known() -> None:
    bench = Bench(least=2)
    bench.node.queue("a", Holdings(10**6))
    await bench.start("a", "b")
    for _ in range(2):
        await bench.push("a", samples=10**6)
        await bench.push("b")
    assert bench.server.merged == [100, 10] * 2
    assert [event.fields["claimed"] for event in bench.node.events("samples cut")] == [10**6], "said once"
    await bench.node.deliver("a", Lost("a", 1, "left"), Joined("a", 2))
    await bench.push("b")
    await bench.push("a", samples=101, incarnation=2)
    assert len(bench.node.events("refused")) == 1, "a new incarnation has declared nothing"


@on_virtual_time
async def test_a_device_that_was_refused_is_invited_again_in_the_next_round() -> None:
    bench = Bench(least=2)
    await bench.start("a", "b")
    await bench.push("a", samples=0)
    assert len(bench.node.sent_of(Invite, "a")) == 1
    await bench.push("b")
    assert [invite.round for invite in bench.node.sent_of(Invite, "a")] == [0, 1]


@on_virtual_time
async def test_segments_that_overlap_are_refused() -> None:
    bench = Bench()
    await bench.start("a")
    await bench.push("a", first=0, last=0)
    await bench.push("a", first=0, last=1)
    assert "which overlap" in bench.node.events("refused")[0].fields["reason"]


# --- commit and save --------------------------------------------------------------------------------------------------


def _quorum() -> dict[str, Any]:
    return {"barrier": {"kind": "quorum", "share": 0.5}}


@on_virtual_time
async def test_a_device_that_is_late_is_released_and_the_round_goes_on() -> None:
    bench = Bench(least=2, **_quorum())
    bench.progress.durations = (1.0, 1.0, 1.0)
    await bench.start("a", "b")
    late = bench.turn_of("b")
    await bench.push("a")
    await bench.node.advance(2.0)
    assert bench.progress.round == 1
    assert bench.node.sent_of(Release, "b") == [Release(late)]
    assert bench.progress.late == 1


@on_virtual_time
async def test_a_release_is_repeated_until_it_is_confirmed_and_only_then_the_run_is_saved() -> None:
    bench = Bench(FixedPolicy(checkpoint=1), least=2, **_quorum())
    bench.progress.durations = (1.0, 1.0, 1.0)
    await bench.start("a", "b")
    late = bench.turn_of("b")
    await bench.push("a")
    await bench.node.advance(2.0 + RETRY_S)
    assert bench.node.sent_of(Release, "b") == [Release(late)] * 2
    assert bench.policy.saved_rounds == [0]
    await bench.node.deliver("b", Released(late))
    assert bench.policy.saved_rounds == [0, 1]


@on_virtual_time
async def test_with_a_buffered_barrier_work_carries_over_and_counts_as_stale() -> None:
    bench = Bench(least=2, barrier={"kind": "buffered", "size": 1})
    await bench.start("a", "b")
    await bench.push("a")
    await bench.push("b")
    assert bench.progress.round == 2
    assert bench.server.staleness == [0, 1]
    assert bench.node.sent_of(Release) == []


@on_virtual_time
async def test_at_the_end_every_connected_device_is_stopped() -> None:
    bench = Bench(FixedPolicy(rounds=1), least=2)
    await bench.start("a", "b")
    await bench.push("a")
    await bench.push("b")
    assert bench.node.result.status == "done"
    assert [sent.to for sent in bench.node.sent if isinstance(sent.message, Stop)] == ["a", "b"]


# --- stalls -----------------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_a_stalled_round_names_the_devices_it_waits_for() -> None:
    bench = Bench(least=2, patience="1 min")
    await bench.start("a", "b")
    await bench.node.advance(61.0)
    assert bench.node.result.status == "failed"
    assert bench.node.result.reason == ("no progress for 1 min: 0 updates of round 0 arrived, still waiting for a, b")


@on_virtual_time
async def test_a_round_that_can_go_on_does_not_stall() -> None:
    """Before the run gives up, it closes the round without the device that it waits for."""
    bench = Bench(patience="1 min")
    await bench.start_with("a", "b")
    await bench.push("a")
    await bench.node.advance(61.0)
    assert bench.progress.round == 1
    assert bench.progress.left_out == {"b": 1}


@on_virtual_time
async def test_a_run_with_too_few_devices_names_those_that_left() -> None:
    bench = Bench(least=2, patience="1 min")
    await bench.start("a", "b")
    await bench.node.deliver("b", Lost("b", 1, "connection closed"))
    await bench.push("a")
    await bench.node.advance(61.0)
    assert bench.node.result.reason == (
        "no progress for 1 min: 1 of the 2 devices needed are connected (rounds.least), still waiting for b to return"
    )


@on_virtual_time
async def test_a_device_that_returns_again_and_again_does_not_keep_a_run_alive() -> None:
    bench = Bench(patience="1 min")
    await bench.start("a")
    for incarnation in range(1, 20):
        await bench.node.deliver("a", Lost("a", incarnation, "connection closed"))
        await bench.node.deliver("a", Joined("a", incarnation + 1))
        await bench.node.advance(10.0)
    assert bench.node.result.status == "failed"


async def _round_then_alone(**settings: Any) -> Bench:
    """Three devices complete a round; then two are lost and the update of the third is refused."""
    bench = Bench(patience="1 min", **settings)
    await bench.start_with("a", "b", "c")
    for device in "abc":
        await bench.push(device)
    for device in "bc":
        await bench.node.deliver(device, Lost(device, 1, "connection closed"))
    await bench.push("a", samples=0)
    return bench


@on_virtual_time
async def test_a_refused_device_that_is_alone_for_a_while_does_not_end_the_run() -> None:
    bench = await _round_then_alone()
    await bench.node.advance(30.0)
    assert bench.node.result is None
    assert len(bench.node.sent_of(Invite, "a")) == 2, "it waits for the next round"
    await bench.node.deliver("b", Joined("b", 2))
    await bench.push("b", incarnation=2)
    assert bench.progress.round == 2
    assert len(bench.node.sent_of(Invite, "a")) == 3


@on_virtual_time
async def test_a_run_whose_only_device_is_refused_names_those_that_it_waits_for() -> None:
    bench = await _round_then_alone()
    for incarnation in range(1, 20):
        await bench.node.deliver("a", Lost("a", incarnation, "connection closed"), Joined("a", incarnation + 1))
        await bench.node.advance(10.0)
    assert bench.node.result.status == "failed"
    assert bench.node.result.reason.startswith(
        "no progress for 1 min: still waiting for b, c, since no update of a can be used: "
    )


@on_virtual_time
async def test_a_run_ends_once_most_devices_that_took_part_are_refused() -> None:
    bench = await _round_then_alone()
    await bench.node.deliver("b", Joined("b", 2))
    await bench.push("b", incarnation=2, samples=0)
    assert bench.node.result.reason.startswith("no update of round 1 could be used: a: ")


@on_virtual_time
async def test_devices_that_took_part_long_ago_do_not_keep_a_run_waiting() -> None:
    bench = Bench(patience="1 min")
    await bench.start_with("a", "b", "c")
    for device in "abc":
        await bench.push(device)
    for device in "bc":
        await bench.node.deliver(device, Lost(device, 1, "connection closed"))
    for _ in range(3):
        await bench.node.advance(25.0)
        await bench.push("a")
    await bench.push("a", samples=0)
    assert bench.node.result.reason.startswith("no update of round 4 could be used: a: ")


@on_virtual_time
async def test_a_device_that_does_not_answer_counts_among_those_that_take_part() -> None:
    bench = Bench(patience="1 min", turn_patience="20 s")
    await bench.start_with("a", "b")
    await bench.push("a")
    await bench.node.advance(21.0)
    assert bench.progress.left_out == {"b": 1}
    await bench.push("a", samples=0)
    assert bench.node.result is None


# --- duplex -----------------------------------------------------------------------------------------------------------


@on_virtual_time
async def test_with_duplex_a_device_is_invited_ahead_once_all_have_pushed_a_layer() -> None:
    bench = Bench(least=2, transfer="duplex")
    await bench.start("a", "b")
    await bench.push("a", first=1, last=1)
    assert [invite.ahead for invite in bench.node.sent_of(Invite)] == [False, False]
    await bench.push("b", first=1, last=1)
    assert [invite.ahead for invite in bench.node.sent_of(Invite, "a")] == [False, True]


@on_virtual_time
async def test_with_duplex_a_pull_of_a_layer_waits_until_all_have_pushed_it() -> None:
    bench = Bench(transfer="duplex")
    await bench.start("a")
    current = bench.turn_of("a")
    await bench.push("a", first=1, last=1)
    ahead = bench.turn_of("a")
    await bench.node.deliver("a", Pull(ahead, 0, 0))
    assert [(segment.turn, segment.first) for segment in bench.node.sent_of(Segment)] == [(ahead, 1)]
    await bench.push("a", first=0, last=0, turn=current)
    assert [(segment.turn, segment.first) for segment in bench.node.sent_of(Segment)] == [(ahead, 1), (ahead, 0)]


@on_virtual_time
async def test_with_duplex_a_layer_returns_unasked_once_all_have_pushed_it() -> None:
    bench = Bench(least=2, transfer="duplex")
    await bench.start("a", "b")
    await bench.push("a", first=1, last=1)
    assert bench.node.sent_of(Segment) == []
    await bench.push("b", first=1, last=1)
    assert [(sent.to, sent.message.first) for sent in bench.node.sent if isinstance(sent.message, Segment)] == [
        ("a", 1),
        ("b", 1),
    ]


@on_virtual_time
async def test_with_duplex_all_devices_push_in_the_order_of_the_one_that_is_expected_last() -> None:
    bench = Bench(least=2, transfer="duplex")
    await bench.start("a", "b")
    turns = {device: bench.turn_of(device) for device in "ab"}
    await bench.push("a")
    await bench.push("b", first=0, last=0)
    await bench.push("b", first=1, last=1, turn=turns["b"])
    await bench.push("a", turn=bench.turn_of("a"))
    await bench.push("b", turn=bench.turn_of("b"))
    told = {device: bench.node.sent_of(Invite, device)[-1].segments for device in "ab"}
    assert told == {"a": ((0, 0), (1, 1)), "b": ()}


@on_virtual_time
async def test_with_duplex_the_loss_of_an_unfinished_device_withdraws_the_invitations_ahead() -> None:
    bench = Bench(least=2, transfer="duplex")
    await bench.start("a", "b")
    turns = {device: bench.turn_of(device) for device in "ab"}
    await bench.push("a", first=1, last=1)
    await bench.push("b", first=1, last=1)
    ahead = bench.turn_of("a")
    await bench.node.deliver("b", Lost("b", 1, "connection closed"))
    assert bench.node.sent_to("a")[-1] == Release(ahead, only=True)
    await bench.push("a", first=0, last=0, turn=turns["a"])
    assert bench.server.merged == [10], "the round is merged as usual"

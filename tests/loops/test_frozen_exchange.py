"""The exchange of frozen weights: asked for once, repeated until answered, never with nonsense."""

from __future__ import annotations

import asyncio

import pytest
from torch import nn

from potluck.errors import RunError
from potluck.loops.frozen_exchange import FrozenFetcher, FrozenSender
from potluck.loops.messages import FrozenPull, FrozenSegment
from potluck.loops.node import COORDINATOR
from potluck.loops.run_progress import RunProgress
from potluck.model.frozen_weights import FrozenWeights
from potluck.model.layer_chain import trace_layers
from potluck.model.model_state import WeightLayout
from potluck.payload import Payload
from tests.loops.recording_node import RecordingNode, on_virtual_time


def _frozen() -> FrozenWeights:
    chain = trace_layers(nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)), (4,))
    return FrozenWeights.of_chain(chain, WeightLayout.of_chain(chain))


@on_virtual_time
async def test_a_cancelled_turn_leaves_the_fetch_running_and_the_next_one_waits_for_it() -> None:
    node, frozen = RecordingNode("pi"), _frozen()
    fetcher = FrozenFetcher(node, frozen, missing := {0}, retry_s=5.0)
    turn = asyncio.ensure_future(fetcher.fetch_all())
    await asyncio.sleep(0)
    turn.cancel()
    following = asyncio.ensure_future(fetcher.fetch_all())
    await asyncio.sleep(1)
    assert node.sent_to(COORDINATOR) == [FrozenPull(0, 0)]
    fetcher.receive_segment(FrozenSegment(frozen.pack_layers(0, 0), first=0, last=0))
    await following
    assert not missing
    assert fetcher.is_complete
    await fetcher.fetch_all()
    assert len(node.sent_to(COORDINATOR)) == 1


@on_virtual_time
async def test_weights_that_were_not_asked_for_are_ignored_and_unusable_ones_end_the_device() -> None:
    fetcher = FrozenFetcher(RecordingNode("pi"), _frozen(), {0}, retry_s=5.0)
    unusable = FrozenSegment(Payload(3), first=0, last=0)
    fetcher.receive_segment(unusable)
    turn = asyncio.ensure_future(fetcher.fetch_all())
    await asyncio.sleep(1)
    with pytest.raises(RunError, match="pi cannot use the coordinator's frozen weights"):
        fetcher.receive_segment(unusable)
    turn.cancel()
    fetcher.cancel()


@on_virtual_time
async def test_the_coordinator_ignores_requests_for_layers_that_do_not_exist() -> None:
    node, progress = RecordingNode(COORDINATOR), RunProgress()
    sender = FrozenSender(node, _frozen(), progress)
    for first, last in ((0, 1), (1, 1), (-1, 0), (0, 2**60), (1, 0)):
        sender.answer_request("pi", FrozenPull(first, last))
    assert not node.sent_to("pi")
    sender.answer_request("pi", FrozenPull(0, 0))
    (segment,) = node.sent_to("pi")
    assert isinstance(segment, FrozenSegment)
    assert progress.bytes_sent == segment.nbytes == 4 * 20 + 64

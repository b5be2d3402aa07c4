"""Asks devices of a pipeline until each has answered, they are lost, or the wait is over."""

from __future__ import annotations

import math
from collections.abc import Mapping

from potluck.loops.leader import Leader
from potluck.loops.messages import Message
from potluck.loops.pipeline.pipeline_members import PipelineMembers
from potluck.loops.pipeline.term_state import PendingAnswers, TermState
from potluck.loops.retry_timer import RetryTimer

__all__ = ["TermRequests"]

_MAX_PAUSE_RETRIES = 4  # times `retry`: the longest pause between two requests


class TermRequests:
    """Sends the requests of a term. Only one set of them is open at a time."""

    def __init__(self, leader: Leader, members: PipelineMembers, term: TermState, retry_s: float) -> None:
        self._leader = leader
        self._members = members
        self._term = term
        self._retry_s = retry_s

    async def request_answers(self, requests: Mapping[str, Message], max_s: float = math.inf) -> dict[str, Message]:
        """The answers of these devices; the loss of one of them breaks the term and ends the wait.

        A device that is still working on the answer says so when it is asked again. One that says nothing at all is
        quarantined if others do answer.
        """
        node, term, stall_timeout = self._leader.node, self._term, self._leader.stall_timeout
        pending = term.pending = PendingAnswers(requests)
        began = node.now()
        ends_at = began + max_s
        timer: RetryTimer[str] = RetryTimer(self._retry_s, _MAX_PAUSE_RETRIES * self._retry_s)
        for device in requests:
            timer.schedule_first(device, began)
        while not term.is_broken and pending.unanswered():
            now = node.now()
            if now >= stall_timeout.expires_at:
                term.is_broken = True
            elif now >= ends_at:
                break
            elif now >= timer.next_retry_at:
                self._members.quarantine_mute(requests, pending.unanswered(), began)
                for device in timer.due_requests(pending.unanswered(), now):
                    node.send(device, requests[device])
            else:
                await self._leader.handle_next(min(timer.next_retry_at, ends_at))
        pending.is_open = False
        return pending.answers

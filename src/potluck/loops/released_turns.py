"""Turns that a round went on without, until their devices confirm that they no longer work on them.

late       the barrier closed the round: the device drops its work, confirms, and may be invited meanwhile
left out   nothing was heard of it for too long: it is not invited until it confirms that it is idle
"""

from __future__ import annotations

from collections.abc import Collection

from potluck.loops.leader import Leader
from potluck.loops.messages import Invite, Release, Released
from potluck.loops.retry_timer import RetryTimer
from potluck.loops.turn_patience import TurnPatience
from potluck.loops.turn_record import TurnRecord

__all__ = ["ReleasedTurns"]


class ReleasedTurns:
    """By device; which of them are left out is saved with the run's progress."""

    def __init__(self, leader: Leader, retry_timer: RetryTimer[int], patience: TurnPatience) -> None:
        self._node = leader.node
        self._journal = leader.journal
        self._roster = leader.roster
        self._progress = leader.progress
        self._retry_timer = retry_timer
        self._patience = patience
        self.turns: dict[str, TurnRecord] = {}
        self.left_out = leader.progress.left_out  # devices that do not answer, and the turn of each

    def unconfirmed(self) -> list[TurnRecord]:
        """The turns to wait for where nothing may be in flight."""
        return [turn for device, turn in self.turns.items() if device not in self.left_out]

    def available_devices(self) -> Collection[str]:
        """The connected devices, except those that are left out."""
        if not self.left_out:
            return self._roster
        return [device for device in self._roster if device not in self.left_out]

    def release_late(self, turn: TurnRecord) -> None:
        """Tell a device that is late for the round to drop its work."""
        self._progress.late += 1
        self._journal.record_event(turn.device, "late")
        self._patience.watch_turn(turn, self._node.now())
        self._send_release(turn)

    def leave_out(self, turn: TurnRecord) -> None:
        """Neither wait for a device nor invite it until it confirms that it works on nothing any more."""
        self._journal.record_event(turn.device, "left out", reason="does not answer")
        self.left_out[turn.device] = turn.number
        self._send_release(turn)

    def ask_back(self, device: str) -> None:
        """A device has connected that was left out when the run was saved."""
        incarnation = self._roster.incarnation_of(device)
        assert incarnation is not None
        invite = Invite(self.left_out[device], self._progress.round, 0)
        self._send_release(TurnRecord(invite, device, incarnation, self._node.now()))

    def _send_release(self, turn: TurnRecord) -> None:
        self.turns[turn.device] = turn
        self._retry_timer.schedule_retry(turn.number, self._node.now())
        self.remind_device(turn)

    def remind_device(self, turn: TurnRecord) -> None:
        self._node.send(turn.device, Release(turn.number, idle=turn.device in self.left_out))

    def confirm_release(self, device: str, released: Released) -> None:
        """The device has confirmed; if it was left out, it may be invited again."""
        turn = self.turns.get(device)
        if turn is None or turn.number > released.turn or (device in self.left_out and not released.idle):
            return
        del self.turns[device]
        if self.left_out.pop(device, None) is not None:
            self._journal.record_event(device, "answers again")

    def forget_device(self, device: str) -> None:
        """The device is lost, or invited again."""
        self.turns.pop(device, None)
        self.left_out.pop(device, None)

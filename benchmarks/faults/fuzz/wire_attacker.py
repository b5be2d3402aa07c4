"""A hostile device on the wire: it joins with a real token, sends mutated messages, and returns under another name.

After every burst it asks the coordinator for the status of a transfer that does not exist. The answer shows that the
burst was handled and that the device has not been expelled; only such bursts count.
"""

from __future__ import annotations

import contextlib
import queue
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import zenoh
from zenoh.handlers import Callback

from benchmarks.faults.fuzz.fuzz_corpus import control_samples, record_corpus
from benchmarks.faults.fuzz.honest_replies import honest_replies
from benchmarks.faults.fuzz.hostile_sender import HostileSender, WireInput
from potluck.errors import PotluckError
from potluck.loops.node import COORDINATOR
from potluck.worlds.live import control_messages as control
from potluck.worlds.live import key_expressions, wire_format
from potluck.worlds.live.handshake_messages import (
    JoinAccepted,
    JoinRefused,
    JoinRequest,
    decode_join_answer,
    encode_handshake,
)
from potluck.worlds.live.wire_format import STATUS_REQUEST, ControlFrame, TransferOffer, WireError
from potluck.worlds.live.zenoh_session import Endpoint, EndpointError, open_session

__all__ = ["WireAttacker"]

_BURST = 25
_ANSWER_S = 5.0
_LIMIT_BYTES = 1 << 20
_MARKER = 2**40  # numbers of transfers that do not exist


class WireAttacker:
    """One hostile device at a time, under changing names."""

    def __init__(self, invitations: Mapping[str, tuple[str, str]], loop: str, seed: int, victim: str) -> None:
        self._invitations = dict(invitations)
        self._random = random.Random(seed)
        self._victim = victim  # an honest device that is sent messages, too
        corpus = record_corpus(loop)
        self._recorded = corpus.to_coordinator
        messages = (*corpus.to_coordinator, *corpus.to_device)
        leaving = (control.LeaveNotice,)
        controls = [message for message in control_samples() if not isinstance(message, leaving)]
        self._sender = HostileSender(self._random, messages, controls, _LIMIT_BYTES)
        self._free_at = dict.fromkeys(self._invitations, 0.0)  # when a name may join again
        self._markers = 0
        self.identities = 0
        self.unanswered = 0  # bursts after which the device had been expelled

    def attack(self, inputs: int, deadline: float) -> int:
        """Send until so many inputs were handled; returns how many were."""
        fed = 0
        while fed < inputs and time.monotonic() < deadline:
            name = min(self._free_at, key=lambda each: (self._free_at[each], self._random.random()))
            time.sleep(min(1.0, max(0.0, self._free_at[name] - time.monotonic())))
            self._free_at[name] = time.monotonic() + 1.0
            try:
                fed += self._attack_as(name, inputs - fed)
            except (EndpointError, zenoh.ZError):
                time.sleep(0.1)
        return fed

    def _attack_as(self, name: str, inputs: int) -> int:
        """Join and send until expelled."""
        address, token = self._invitations[name]
        session = open_session(Endpoint(connect=(address,), connect_timeout_s=_ANSWER_S), "client")
        try:
            accepted = _ask_to_join(
                session, JoinRequest(name=name, token=token, body=f"{self._random.getrandbits(64)}")
            )
            if not isinstance(accepted, JoinAccepted):
                wait = accepted.retry_s if accepted is not None else None
                self._free_at[name] = time.monotonic() + (1.0 if wait is None else wait)
                return 0
            self.identities += 1
            return _HostileDevice(self, session, accepted).send_until_expelled(inputs)
        finally:
            with contextlib.suppress(zenoh.ZError):
                session.close()  # type: ignore[no-untyped-call]

    def next_marker(self) -> int:
        self._markers += 1
        return _MARKER + self._markers

    def next_burst(self, name: str, incarnation: int) -> list[tuple[str, WireInput]]:
        """Inputs and who receives them."""
        burst: list[tuple[str, WireInput]] = []
        while len(burst) < _BURST:
            to = self._victim if self._random.getrandbits(4) == 0 else COORDINATOR
            burst += [(to, each) for each in self._sender.next_inputs(name, incarnation)]
        return burst

    def mutated_request(self, name: str) -> bytes:
        return self._sender.mutated(encode_handshake(JoinRequest(name=name, token=self._invitations[name][1])))

    def replies_to(self, name: str, incarnation: int, frame: ControlFrame | TransferOffer) -> list[WireInput]:
        """What an honest device would answer."""
        self._sender.note_message(name, frame.message)
        replies = honest_replies(frame, self._recorded)
        return [each for reply in replies for each in self._sender.valid_inputs(incarnation, reply)]


class _HostileDevice:
    """One incarnation."""

    def __init__(self, attacker: WireAttacker, session: zenoh.Session, accepted: JoinAccepted) -> None:
        self._attacker = attacker
        self._session = session
        self._name, self._era, self._incarnation = accepted.name, accepted.era, accepted.incarnation
        self._inbox: queue.SimpleQueue[tuple[bytes, bool]] = queue.SimpleQueue()
        for lane in (key_expressions.CONTROL, key_expressions.BULK):
            session.declare_subscriber(
                key_expressions.inbox_key(self._era, self._name, lane), Callback(self._on_sample, indirect=False)
            )
        self._answered: set[int] = set()
        self._is_expelled = False

    def send_until_expelled(self, inputs: int) -> int:
        self._put(
            COORDINATOR, (wire_format.encode_frame(self._incarnation, 0, control.DeviceHeartbeat(True)), None, False)
        )
        fed = 0
        while fed < inputs and not self._is_expelled:
            burst = self._attacker.next_burst(self._name, self._incarnation)
            for to, each in burst:
                self._put(to, each)
            self._session.get(
                key_expressions.admission_key(self._name), zenoh.handlers.DefaultHandler(),
                payload=self._attacker.mutated_request(self._name), timeout=1.0,
            )  # fmt: skip
            if not self._was_handled():
                self._attacker.unanswered += 1
                break
            fed += len(burst) + 1
        return fed

    def _put(self, to: str, wire_input: WireInput) -> None:
        data, header, bulk = wire_input
        lane = key_expressions.BULK if bulk else key_expressions.CONTROL
        key = key_expressions.lane_key(self._era, self._name, to, lane)
        self._session.put(key, data, attachment=header, congestion_control=zenoh.CongestionControl.BLOCK)

    def _was_handled(self) -> bool:
        """Ask for the status of a transfer that does not exist, and wait for the answer."""
        marker = self._attacker.next_marker()
        head = wire_format.encode_chunk(self._incarnation, marker, STATUS_REQUEST, b"")
        self._put(COORDINATOR, (b"", head, True))
        deadline = time.monotonic() + _ANSWER_S
        while marker not in self._answered and not self._is_expelled and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                self._handle(*self._inbox.get(timeout=0.05))
        return marker in self._answered and not self._is_expelled

    def _on_sample(self, sample: zenoh.Sample) -> None:
        if sample.attachment is None:
            bulk = str(sample.key_expr).endswith(key_expressions.BULK)
            self._inbox.put((bytes(sample.payload.to_bytes()), bulk))

    def _handle(self, data: bytes, bulk: bool) -> None:
        frame: Any
        try:
            frame = wire_format.decode_offer(data, 1 << 40) if bulk else wire_format.decode_frame(data)
        except WireError:
            return
        if isinstance(frame.message, control.ExpelNotice):
            self._is_expelled = True
        elif isinstance(frame.message, control.TransferDeclined):
            self._answered.add(frame.message.number)
        for each in self._attacker.replies_to(self._name, self._incarnation, frame):
            self._put(COORDINATOR, each)


def _ask_to_join(session: zenoh.Session, request: JoinRequest) -> JoinAccepted | JoinRefused | None:
    """None if nobody answers."""
    replies: Sequence[Any] = list(
        session.get(
            key_expressions.admission_key(request.name),
            zenoh.handlers.DefaultHandler(),
            payload=encode_handshake(request),
            timeout=_ANSWER_S,
        )
    )
    for reply in replies:
        if reply.ok is not None:
            with contextlib.suppress(PotluckError):
                return decode_join_answer(bytes(reply.ok.payload.to_bytes()))
    return None

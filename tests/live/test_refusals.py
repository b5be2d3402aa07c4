"""A device that may not join or sends invalid messages gets the reason; the run continues undisturbed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from potluck.errors import RunError
from potluck.job import Job
from potluck.loops.messages import Message, Push
from potluck.loops.node import Node
from potluck.payload import Payload
from potluck.run import joined_device
from potluck.run.device_state import DeviceStates, SavedDeviceStates
from potluck.run.rounds_setup import RoundsSetup
from potluck.task import Task
from potluck.worlds.live import key_expressions, wire_format
from potluck.worlds.live.device_runtime import DeviceOptions, JoinRefusedError, run_device
from potluck.worlds.live.handshake_messages import PROTOCOL, JoinAccepted, JoinRefused, JoinRequest, decode_join_answer
from potluck.worlds.live.zenoh_session import open_session
from tests.live.live_scenarios import LEASE, RunControl, Scenario, check_committed_rounds, run_live
from tests.simulation.runs import instants

ROUNDS = 16
STEADY: dict[str, Any] = {
    "fleet": {"devices": [{"name": "d", "count": 3, "flops": "10 MFLOP/s"}], "lease": LEASE},
    "rounds": {"least": 3, "patience": "90 s"},
}
HONEST = {"d-0", "d-1"}
DeviceMain = Callable[[Node, JoinAccepted], Coroutine[Any, Any, None]]


def _undisturbed(folder: Path, scenario: Scenario, rounds: int = ROUNDS) -> dict[str, Any]:
    """Run the scenario during a run whose honest devices must not be affected; return the run's summary."""
    result = run_live(folder, scenario, emulate_fleet=True, stop={"rounds": rounds}, **STEADY)
    check_committed_rounds(folder, result, rounds)
    assert not [instant for instant in instants(folder, "lost") if instant.node in HONEST]
    updates = {name: figures["updates"] for name, figures in result.summary["devices"].items()}
    assert {name: updates[name] for name in HONEST} == dict.fromkeys(HONEST, rounds)
    return result.summary


# --- admission --------------------------------------------------------------------------------------------------------


def test_a_refused_device_gets_the_reason(tmp_path: Path) -> None:
    """A wrong token, an expired one, an unknown name, another job, a newer protocol, noise."""
    rng = np.random.default_rng(1)

    async def scenario(control: RunControl) -> None:
        for request, reason in _refused_requests(control):
            with pytest.raises(JoinRefusedError, match=f"{request.name} was refused: .*{re.escape(reason)}"):
                await run_device(control.endpoint, request, _never, DeviceOptions(once=True))
        for length in (0, 7, 1000, 100_000):
            answer = decode_join_answer(await asyncio.to_thread(_send_join_request, control, rng.bytes(length)))
            assert isinstance(answer, JoinRefused)
            assert "handshake message" in answer.reason

    _undisturbed(tmp_path / "run", scenario, rounds=60)
    assert not instants(tmp_path / "run", "joined")


def _refused_requests(control: RunControl) -> list[tuple[JoinRequest, str]]:
    good = JoinRequest(name="d-2", token=control.token())
    return [
        (msgspec.structs.replace(good, token="guessed"), "token"),
        (msgspec.structs.replace(good, token=control.token(hours=-1.0)), "has expired"),
        (msgspec.structs.replace(good, name="stranger"), "not in this run's fleet (d-0, d-1, d-2)"),
        (msgspec.structs.replace(good, digest="0" * 64), "another job"),
        (msgspec.structs.replace(good, protocol=PROTOCOL + 1), f"speaks protocol {PROTOCOL + 1}"),
    ]


def test_another_job_or_another_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `potluck join` experiences it: the address now serves another job, or the device's code differs."""

    async def scenario(control: RunControl) -> None:
        control.kill("d-2")
        with pytest.raises(JoinRefusedError, match="d-2 was refused: d-2 takes part in another job than this run's"):
            await _join(control, "0" * 64)
        with monkeypatch.context() as patch:
            patch.setattr(joined_device, "prepare_job", _other_code)
            with pytest.raises(RunError, match="d-2 builds another model than the coordinator"):
                await _join(control)
        control.devices.start_device("d-2")

    _undisturbed(tmp_path / "run", scenario)
    assert [instant.node for instant in instants(tmp_path / "run", "joined")] == ["d-2"]


async def _join(control: RunControl, digest: str = "") -> None:
    """Join as d-2 like `potluck join`, optionally expecting another job."""
    device = joined_device.JoinedDevice()
    device.digest = digest
    request = JoinRequest(name="d-2", token=control.token())
    options = DeviceOptions(once=True, load_fleet=device.load_fleet, known_digest=lambda: device.digest)
    await run_device(control.endpoint, request, device.train, options)


def _other_code(job: Job, task: Task | None, data: Path | None, *, load_weights: bool) -> RoundsSetup:
    """The same job with code that builds another model of the same size."""
    original = RoundsSetup.from_job(job, None, None, load_weights)
    params = tuple(replace(entry, name=f"{entry.name}s") for entry in original.layout.params)
    return replace(original, layout=replace(original.layout, params=params))


async def _never(node: Node, welcome: JoinAccepted) -> None:
    raise AssertionError("it was let in")


def _send_join_request(control: RunControl, noise: bytes) -> bytes:
    with open_session(control.endpoint, "client") as session:
        replies = [reply.ok for reply in session.get(key_expressions.admission_key("d-2"), payload=noise, timeout=10)]
    assert replies[0] is not None
    return bytes(replies[0].payload.to_bytes())


# --- invalid messages -------------------------------------------------------------------------------------------------


async def _replace(control: RunControl, take_part: DeviceMain, done: Callable[[], bool]) -> None:
    """Replace d-2 with a misbehaving device until `done` is true; then start d-2 again."""
    control.kill("d-2")
    join_task = asyncio.ensure_future(
        run_device(
            control.endpoint, JoinRequest(name="d-2", token=control.token()), take_part, DeviceOptions(once=True)
        )
    )
    while not done():
        assert not join_task.done(), join_task.result()
        await asyncio.sleep(0.02)
    join_task.cancel()
    await asyncio.gather(join_task, return_exceptions=True)
    control.devices.start_device("d-2")


class _Poisoned:
    """A node whose updates contain only NaN."""

    def __init__(self, node: Node, sent: list[Message]) -> None:
        self._node, self._sent = node, sent
        self.name, self.incarnation = node.name, node.incarnation
        self.now, self.sleep, self.receive, self.compute = node.now, node.sleep, node.receive, node.compute
        self.speed, self.rng, self.record = node.speed, node.rng, node.record

    def send(self, to: str, message: Message) -> Awaitable[None]:
        if isinstance(message, Push):
            bad = tuple(np.full_like(array, np.nan) for array in message.payload.arrays)
            message = msgspec.structs.replace(message, payload=Payload(message.payload.nbytes, bad))
            self._sent.append(message)
        return self._node.send(to, message)


def test_nan_weights_are_not_merged(tmp_path: Path) -> None:
    async def scenario(control: RunControl) -> None:
        sent: list[Message] = []
        setup = RoundsSetup.from_job(control.job, None, None)

        async def take_part(node: Node, welcome: JoinAccepted) -> None:
            await setup.build_device_loop(_Poisoned(node, sent), DeviceStates(SavedDeviceStates(), {})).main()

        await _replace(control, take_part, lambda: len(sent) > 2)

    summary = _undisturbed(tmp_path / "run", scenario)
    refused = instants(tmp_path / "run", "refused")
    assert len(refused) == summary["refused"] >= 1
    assert {instant.node for instant in refused} == {"d-2"}
    assert "not all finite" in refused[0].fields["reason"]
    assert np.isfinite(summary["loss"])


def test_a_device_that_offers_ten_gigabytes_or_sends_noise_is_expelled(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    lost: list[Any] = []

    async def scenario(control: RunControl) -> None:
        async def take_part(node: Node, welcome: JoinAccepted) -> None:
            await node.receive(node.now() + 0.2)
            lane = key_expressions.lane_key(welcome.era, "d-2", "coordinator", key_expressions.BULK)
            with open_session(control.endpoint, "client") as session:
                for data in (_claim(), rng.bytes(50), rng.bytes(70_000)):
                    await asyncio.to_thread(session.put, lane, data)
                await node.sleep(60)

        def is_expelled() -> bool:
            lost[:] = [
                instant for instant in instants(control.folder, "lost") if "invalid messages" in str(instant.fields)
            ]
            return bool(lost)

        await _replace(control, take_part, is_expelled)

    _undisturbed(tmp_path / "run", scenario)
    assert {instant.node for instant in lost} == {"d-2"}


def _claim() -> bytes:
    values = np.zeros(4)
    push = Push(Payload(10 * 2**30, (values,)), turn=0, first=0, last=0, samples=0, loss=0.0)
    return wire_format.encode_offer(2, 0, 1, push, [values], 1 << 20)

"""A job on real processes and devices: the coordinator's side of a live run, and a device's.

    serve   opens the door, waits for the fleet, leads the rounds, keeps the run's folder
    join    knocks, gets the job, builds the model from it, takes part; for ever, or once

Both sides build the same things from the same job; only numbers travel.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import tomllib
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import zenoh

from potluck.errors import RunError, UserError
from potluck.job import Job, dumps, make
from potluck.loops.messages import Gift
from potluck.loops.node import Envelope, Node
from potluck.loops.pipeline import messages as pipeline
from potluck.loops.progress import Ending
from potluck.run import Result, set_up
from potluck.run.belongings import Belongings, Kept
from potluck.run.gathering import gathered
from potluck.run.inlets import live_stream
from potluck.run.keeper import Keeper
from potluck.run.pipeline import PipelineSetup
from potluck.run.setup import Setup
from potluck.worlds.live import wire
from potluck.worlds.live.greeting import Hello, Refusal, RunCard, Welcome
from potluck.worlds.live.host import host
from potluck.worlds.live.refusals import Refused
from potluck.worlds.live.security.gate import Gate
from potluck.worlds.live.security.lobby import explain, note_strangers
from potluck.worlds.live.session import Place
from potluck.worlds.live.visitor import visit

__all__ = ["Door", "Seat", "digest", "join", "serve"]

wire.register(Gift, *pipeline.KINDS)

_LOOK_EVERY_S = 0.25  # for a wish to stop


@dataclass(frozen=True)
class Door:
    """How the coordinator is reached, and who comes in."""

    place: Place
    gate: Gate
    wait_s: float = 600.0  # for the fleet, before the run begins with whoever is here
    act_out: bool = False  # the fleet's links, speeds and faults (a lab)
    here: Callable[[Mapping[str, int]], None] = lambda here: None  # told whenever someone comes or goes
    listening: Callable[[], None] = lambda: None  # told when devices can come
    begun: Callable[[Node], None] = lambda node: None


@dataclass(frozen=True)
class Seat:
    """How a device takes part."""

    place: Place
    name: str
    token: str
    once: bool = False
    threads: int = 1
    throttle: float = 1.0
    memory_bytes: int = 0
    patience_s: float = 60.0
    data: Path | None = None


def digest(job: Job) -> str:
    """Tells jobs apart."""
    return hashlib.sha256(dumps(job).encode()).hexdigest()


def serve(setup: Setup | PipelineSetup, keeper: Keeper, door: Door) -> Result:
    """Lead a run, from the beginning or from where its keeper stands."""
    began = time.perf_counter()
    if keeper.tensors is not None:
        setup.server.restore(keeper.tensors)
    keeper.attach(setup.server.tensors)
    keeper.save_often()
    torch.set_num_threads(1)  # so that scores do not depend on the machine
    try:
        ending = asyncio.run(_lead(setup, keeper, door))
    except UserError:
        raise
    except Exception as error:
        keeper.keep_error("".join(traceback.format_exception(error)))
        ending = Ending("failed", f"{type(error).__name__}: {error}")
    module = setup.finished()
    carver = None if isinstance(setup, PipelineSetup) else setup.carver
    summary = keeper.finish(ending, time.perf_counter() - began, gathered(module, carver, keeper.folder))
    return Result(ending.status, ending.reason, summary, keeper.folder, module)


async def _lead(setup: Setup | PipelineSetup, keeper: Keeper, door: Door) -> Ending:
    job = setup.job
    card = RunCard(
        run=keeper.folder.name if keeper.folder else "run", job=dumps(job), digest=digest(job),
        model=setup.model_digest, lease=float(job.fleet.lease), limit_bytes=setup.limit_bytes,
        bears=door.gate.admitted if door.gate.certs is not None else {},
    )  # fmt: skip
    names = [device.name for device in job.fleet.members]

    def coordinate(node: Node) -> Coroutine[Any, Any, Ending]:
        door.begun(node)
        return setup.coordinator(_Attentive(node), keeper, keeper.books).main()

    def welcome(hello: Hello) -> str | Refusal:
        reason = door.gate.reason(hello.name, hello.token, datetime.now(UTC), hello.body)
        if reason is None and hello.digest not in ("", card.digest):
            reason = f"{hello.name} takes part in another job than this run's; start it anew to join this one"
        return hello.name if reason is None else Refusal(reason=reason)

    return await host(
        door.place, run=card, seed=job.seed, journal=keeper.journal, coordinate=coordinate, welcome=welcome,
        admitted=lambda hello: door.gate.let_in.keep(hello.name, hello.body), watch=door.here, began_s=keeper.start,
        fleet=job.fleet if door.act_out else None, muster=names, muster_s=door.wait_s,
        hurry=lambda: keeper.interruption() is not None, opened=partial(_opened, door),
    )  # fmt: skip


def _opened(door: Door, session: zenoh.Session, refused: Refused) -> None:
    """Whom certificates keep from the door learns why in the lobby, and the log learns who it was."""
    if door.gate.certs is not None:
        explain(session, door.gate.stays_out)
        note_strangers(session, door.gate.admitted, refused)
    door.listening()


class _Attentive:
    """A node whose waiting is broken off now and then, so that a wish to stop is heard."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.name = node.name
        self.incarnation = node.incarnation
        self.now, self.sleep, self.send, self.compute = node.now, node.sleep, node.send, node.compute
        self.speed, self.rng, self.record = node.speed, node.rng, node.record

    async def receive(self, until: float | None = None) -> Envelope | None:
        soon = self.now() + _LOOK_EVERY_S
        return await self._node.receive(soon if until is None else min(until, soon))


def join(seat: Seat) -> str:
    """Take part in a run; says how it ended."""
    torch.set_num_threads(seat.threads)
    return asyncio.run(_Guest(seat).stay())


class _Guest:
    """A device: what it has built for a job serves all lives that it has in it."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._digest = ""
        self._setup: asyncio.Future[Setup | PipelineSetup] | None = None

    async def stay(self) -> str:
        seat = self._seat
        hello = Hello(name=seat.name, token=seat.token, threads=seat.threads, memory_bytes=seat.memory_bytes)
        return await visit(
            seat.place, hello=hello, take_part=self._take_part, once=seat.once, patience_s=seat.patience_s,
            throttle=seat.throttle, fleet_of=lambda welcome: _job(welcome).fleet,
            knows=lambda: self._digest if seat.once else "",
        )  # fmt: skip

    async def _take_part(self, node: Node, welcome: Welcome) -> None:
        setup = await self._set_up(welcome)
        if setup.model_digest != welcome.model:
            raise RunError(
                f"{welcome.name} builds another model than the coordinator: its layers have other names or shapes;"
                " install the same task code and the same version of potluck on both"
            )
        if isinstance(setup, PipelineSetup):
            await setup.device_loop(node, None).main()
            return
        async with live_stream(setup, node):
            await setup.device_loop(node, Belongings(Kept(), {})).main()

    async def _set_up(self, welcome: Welcome) -> Setup | PipelineSetup:
        """Once for a job: a life that ends while it is under way leaves it to the next."""
        if self._setup is None or self._digest != welcome.digest:
            job = _job(welcome)
            if digest(job) != welcome.digest:
                raise RunError("the job that came does not match its digest; is the same version of potluck here?")
            if self._setup is not None:
                await asyncio.wait([self._setup])  # tracing two models at once would mix them up
            self._setup = asyncio.ensure_future(asyncio.to_thread(set_up, job, None, self._seat.data, elsewhere=True))
            self._digest = welcome.digest
        return await asyncio.shield(self._setup)


def _job(welcome: Welcome) -> Job:
    return make(tomllib.loads(welcome.job))

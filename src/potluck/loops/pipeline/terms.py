"""How a term begins: all stop and tell what they have, a version and a layout are chosen, layers are handed out.

And how it ends where a device died: what had passed it on its way back is applied by those before it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Mapping

from potluck.errors import UserError
from potluck.journal import Span
from potluck.loops.messages import Message
from potluck.loops.node import COORDINATOR, Node
from potluck.loops.pipeline.checks import layers_refusal, replica_refusal
from potluck.loops.pipeline.history import History
from potluck.loops.pipeline.leader import Leader, Orders
from potluck.loops.pipeline.ledger import Ledger
from potluck.loops.pipeline.messages import Assign, Fetch, Finish, Halt, Inventory, Kept, Piece, Replica, Secure
from potluck.loops.pipeline.planner import Plan
from potluck.loops.pipeline.sourcing import Held, newest_whole, origins
from potluck.loops.progress import Ending

__all__ = ["Terms"]

_SILENCE = 4  # times `retry`, after which a new term begins without those who do not answer


class Terms(Leader):
    """Begins terms, and keeps the archive that is the last resort where layers are lost."""

    def __init__(self, node: Node, orders: Orders) -> None:
        super().__init__(node, orders)
        self._planner = orders.planner
        self._archive = orders.archive
        self._rules = orders.rules
        self._samples = orders.samples
        self._history = History()
        self._end = 0  # of the stretch: no batch beyond it was ever let in
        self._fetched: set[tuple[str, Fetch]] = set()  # what this term asked for, of whom
        self._layout: Plan | None = None  # of the term, from when it is handed out
        self._present: set[str] = set()  # who has entered the term
        self._ledger: Ledger | None = None  # of the term that runs
        self._last_plan: Plan | None = None
        self._secure = 0
        self._changed = False  # another layout pays
        self._broken_at = math.inf  # when a death will be noticed, where only the batch timer tells
        self._committed_at = 0.0
        self._giving: dict[tuple[str, int], Awaitable[None]] = {}

    async def _settle(self) -> Ending | None:
        """Begin a term; if someone is lost on the way, `_disturbed` stays set and it must be tried again."""
        began, after_death = self._node.now(), self._disturbed
        self._planner.forget() if not after_death else None
        held = await self._take_stock()
        there = self._candidates(self._present)
        if self._disturbed or not there:
            self._disturbed = True
            return self._gave_up()
        try:
            plan = self._settings.recovery.layout(self._planner, self._last_plan if after_death else None, there)
        except UserError as error:
            return Ending("failed", f"no layout for {', '.join(there)}: {error}")
        self._foresee(there)
        self._layout = plan = self._planner.place_copies(plan, there)
        version, mixed = self._choose(held, after_death)
        await self._ask(self._assigns(plan, held, version, mixed))
        if self._disturbed:
            return self._gave_up()
        self._restart_from(version)
        self._ledger = Ledger(plan, version, max(min(self._secure, version), self._archive.version))
        self._last_plan = plan
        self._tell_of(plan, version, began, after_death)
        return None

    async def _take_stock(self) -> list[Held]:
        """Begin a new term: everybody stops, and tells what it has."""
        self._secure = self._ledger.secure if self._ledger is not None else 0
        self._disturbed, self._broken_at, self._changed = False, math.inf, False
        self._ledger = self._layout = None
        self._fetched.clear()
        self._giving.clear()
        self._term += 1
        self._archive.begin_term()
        halt = Halt(self._term, self._history.terms)
        halts: dict[str, Message] = {device: halt for device in self._here if device not in self._aside}
        answers = await self._ask(halts, _SILENCE * float(self._settings.retry))
        self._present = {device for device in answers if device in self._here}
        stock = [answer.held for device, answer in answers.items() if isinstance(answer, Inventory)]
        archived = Held(COORDINATOR, 0, self._planner.layers - 1, self._archive.version, self._archive.made)
        return [*(each for held in stock for each in held), archived]

    def _choose(self, held: list[Held], after_death: bool) -> tuple[int, bool]:
        """The version to go on from, and whether layers may be of other versions than that."""
        if after_death and self._settings.recovery.from_archive:
            held[:] = held[-1:]
        if after_death and not self._settings.recovery.consistent:
            return self.books.round, True
        version = newest_whole(held, self._planner.layers)
        assert version is not None, "the archive is whole"
        return version, False

    def _assigns(self, plan: Plan, held: list[Held], version: int, mixed: bool) -> dict[str, Message]:
        made = self._history.made(version)
        return {
            device: Assign(
                self._term, plan.cuts, plan.order, plan.windows, plan.stride, plan.keepers, version, made,
                tuple(origins(held, device, layers, None if mixed else version)),
            )
            for device, layers in zip(plan.order, plan.stages, strict=True)
        }  # fmt: skip

    def _restart_from(self, version: int) -> None:
        """From here on, this version is where the run stands."""
        if version < self.books.round:
            self._chronicle.note(self._node.name, "rolled back", term=self._term, before=self.books.round, to=version)
        for batch in range(self.books.round, version):  # the reports of it were still on their way
            self._chronicle.note(self._node.name, "committed", batch=batch, term=self._history.made(batch + 1))
        self._history.begin(self._term, version)
        self.books.turn = self._term
        self._stand_at(version)

    def _stand_at(self, version: int) -> None:
        self.books.round = self.books.version = version
        self.books.samples = version * self._samples
        self._committed_at = self._node.now()

    def _tell_of(self, plan: Plan, version: int, began: float, after_death: bool) -> None:
        fields = {"term": self._term, "version": version, "cuts": list(plan.cuts), "order": list(plan.order)}
        self._node.record(
            Span(self._node.name, "recover" if after_death else "settle", began, self._node.now(), fields)
        )
        more = {
            "windows": list(plan.windows),
            "period": plan.period,
            "stride": plan.stride,
            "keepers": list(plan.keepers),
        }
        self._chronicle.note(self._node.name, "partition", **fields, **more)

    def _foresee(self, candidates: list[str]) -> None:
        """Have plans ready for each single death."""
        self._planner.foresee(candidates, self._candidates(candidates[1:]))

    async def _finish(self) -> Ending | None:
        """Let those before the dead apply what had passed it: then it need not be done again."""
        ledger, recovery = self._ledger, self._settings.recovery
        if ledger is None or not recovery.consistent or recovery.from_archive:
            return None
        told: set[str] = set()
        longest = len(ledger.plan.order) * self._planner.period(ledger.plan)
        ends_at = min(self._node.now() + longest, self._patience.ends_at)
        while (waiting := ledger.unfinished()) and self._node.now() < ends_at:
            for device in waiting:
                if device not in told:
                    self._node.send(device, Finish(self._term))
            told.update(waiting)
            envelope = await self._node.receive(ends_at)
            if envelope is not None:
                self._handle(envelope)
        return self._gave_up()

    # --- the archive -----------------------------------------------------------------------------------------------

    async def _rescue(self) -> None:
        """The data is out of reach: save the newest version that the others can put together."""
        held = await self._take_stock()
        version = newest_whole(held, self._planner.layers)
        if version is None or version <= self._archive.version:
            return
        self._restart_from(version)
        givers: dict[str, list[Fetch]] = {}
        for origin in origins(held, COORDINATOR, range(self._planner.layers), version):
            request = Fetch(self._term, origin.first, origin.last, version)
            givers.setdefault(origin.device, []).append(request)
        while givers and not self._disturbed:
            await self._fetch({device: requests.pop() for device, requests in givers.items()})
            givers = {device: requests for device, requests in givers.items() if requests}
        if self._archive.version == version:
            self._rules.keep(self._archive.numbers, self.books, self._node.now())

    async def _collect(self, ledger: Ledger) -> None:
        """Bring the version at which all stages stand into the archive."""
        version = self.books.round
        if self._archive.version == version and self._archive.made == self._history.made(version):
            return
        stages = zip(ledger.plan.order, ledger.plan.stages, strict=True)
        await self._fetch({name: Fetch(self._term, layers[0], layers[-1], version) for name, layers in stages})

    async def _fetch(self, requests: Mapping[str, Fetch]) -> None:
        self._fetched.update(requests.items())
        await self._ask(requests)

    def _take(self, sender: str, piece: Piece) -> None:
        """Layers that were asked for, if they can be used."""
        request = Fetch(self._term, piece.first, piece.last, piece.version)
        if (sender, request) not in self._fetched:
            return
        reason = self._archive.refusal(piece.first, piece.last, piece.payload)
        if reason is not None:
            self._refuse(sender, reason)
            return
        if self._asked.get(sender) == request:
            self._answer(sender, piece)
        made = self._history.made(piece.version)
        self._secured(self._archive.add(piece.version, made, piece.first, piece.last, piece.payload))

    def _give(self, sender: str, fetch: Fetch) -> None:
        """Send layers of the archive, unless they are on their way."""
        if (reason := layers_refusal(fetch.first, fetch.last, self._planner.layers)) is not None:
            self._refuse(sender, reason)
            return
        sending = self._giving.get((sender, fetch.first))
        if isinstance(sending, asyncio.Future) and not sending.done():
            return
        if fetch.version != self._archive.version:
            self._disturbed = True
            return
        payload = self._archive.piece(fetch.first, fetch.last)
        piece = Piece(payload, term=self._term, first=fetch.first, last=fetch.last, version=fetch.version)
        self.books.bytes_sent += piece.nbytes
        self._giving[sender, fetch.first] = self._node.send(sender, piece)

    def _archive_copy(self, sender: str, replica: Replica) -> None:
        reason = self._copy_refusal(sender, replica)
        whole = self._archive.take(sender, replica) if reason is None else reason
        if isinstance(whole, str):
            self._refuse(sender, whole)
        elif whole is not None:
            self._node.send(sender, Kept(self._term, replica.first, replica.last, replica.version))
            self._secured(whole)

    def _copy_refusal(self, sender: str, replica: Replica) -> str | None:
        """Why a piece of a copy has no place in the archive."""
        reason = replica_refusal(replica, self._planner.layers)
        if reason is not None:
            return reason
        stages = dict(zip(self._layout.order, self._layout.stages, strict=True)) if self._layout is not None else {}
        if stages.get(sender) != range(replica.first, replica.last + 1) or replica.step:
            return f"it sent a copy of layers {replica.first} to {replica.last}, which are not its own"
        if replica.version > self._furthest or replica.made != self._history.made(replica.version):
            return f"it sent a copy of version {replica.version}, which term {replica.made} cannot have made"
        return None

    @property
    def _furthest(self) -> int:
        """The newest version that anyone can have."""
        return max(self._end, self.books.round, self._archive.version)

    def _stock(self, sender: str, inventory: Inventory) -> None:
        """What a device says that it has, if it can have that."""
        if self._answers is None or not isinstance(self._asked.get(sender), Halt):
            return  # said twice
        for held in inventory.held:
            reason = layers_refusal(held.first, held.last, self._planner.layers)
            honest = held.device == sender and 0 <= held.version <= self._furthest
            if reason is None and not (honest and held.made == self._history.made(held.version)):
                reason = f"it says that {held.device} has version {held.version} of term {held.made}"
            if reason is not None:
                self._refuse(sender, reason)
                return
        self._answer(sender, inventory)

    def _secured(self, whole: bool) -> None:
        if whole and self._ledger is not None and self._ledger.secured(self._archive.version):
            self._say_secure(self._archive.version)

    def _say_secure(self, version: int) -> None:
        for device in self._here:
            self._node.send(device, Secure(self._term, version))

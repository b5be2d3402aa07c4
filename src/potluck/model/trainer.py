"""The devices' side of a round: load the model's pieces, train, hand over the update layer by layer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from potluck.errors import ModelError
from potluck.model.batches import Batches, Indices
from potluck.model.carving import Carver, Choice, Part, Turn
from potluck.model.codecs import Codec
from potluck.model.local import Local, Walk
from potluck.model.noted import Noted
from potluck.model.paced import Paced
from potluck.model.replica import Draws, Loss, Replica
from potluck.model.skew import Remedy
from potluck.model.state import Layout
from potluck.payload import Payload

__all__ = ["Piece", "Session", "Share", "Trainer"]


class Share(Protocol):
    """A device's part of the data in one turn."""

    @property
    def sizes(self) -> Sequence[int]: ...

    @property
    def batches(self) -> Callable[[], Sequence[Indices]]: ...

    @property
    def rng(self) -> Callable[[], np.random.Generator]: ...

    @property
    def samples(self) -> Any: ...

    @property
    def learned(self) -> Callable[[Mapping[int, float]], None] | None: ...


class Beat(Protocol):
    """Told of every mini-batch and layer, where it holds."""

    @property
    def holds(self) -> bool: ...

    @property
    def overlapped(self) -> bool: ...

    def batch(self, place: int) -> None: ...

    def before(self, layer: int) -> None: ...

    def half(self, first: bool, last: bool) -> None: ...

    def after(self, layer: int) -> None: ...

    def done(self) -> None: ...


class Piece(NamedTuple):
    """The numbers of the layers `first` to `last`, as they came over the wire."""

    first: int
    last: int
    payload: Payload


class Trainer:
    """Trains on behalf of devices; each thread has one replica of a kind and uses it for whoever comes next."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        loss: Loss,
        samples: Batches,
        local: Local,
        codec: Codec,
        carver: Carver | None = None,
        remedy: Remedy | None = None,
    ) -> None:
        self._module = module
        self.layout = layout
        self.loss = loss
        self.samples = samples
        self.local = local
        self.codec = codec
        self.carver = carver
        self.remedy = remedy
        self._threads = threading.local()
        self.draws = self._rehearse()

    @property
    def chooses(self) -> bool:
        return self.carver is not None and self.carver.chooses

    def memory(self) -> Any:
        return self.codec.begin()

    def session(
        self,
        whom: Turn,
        pieces: Mapping[int, tuple[int, int, Payload]],
        share: Share,
        lr: float,
        memory: Any,
        draws: Callable[[str], np.random.Generator],
    ) -> Session:
        return Session(self, whom, pieces, share, lr, memory, draws)

    def replica(self, whom: Turn, part: Part | None) -> Replica:
        """This thread's replica of the whole model, or a network of its own for a part like this one."""
        kept: dict[Any, Replica] = self._threads.__dict__.setdefault("replicas", {})
        part = None if self.carver is not None and self.carver.lends else part
        key = None if part is None else part.key
        if key not in kept:
            if len(kept) > 32:
                kept.clear()
            kept[key] = self._make(whom, part)
        replica = kept[key]
        replica.loss = self.loss if self.carver is None else self.carver.loss(whom, self.loss)
        return replica

    def paced(self, replica: Replica) -> Paced:
        """The replica, run layer by layer."""
        if replica.paced is None:
            shape = tuple(self.samples.batch(np.arange(1))[0].shape[1:])
            replica.paced = Paced(replica, shape)
        assert isinstance(replica.paced, Paced)
        return replica.paced

    def _make(self, whom: Turn, part: Part | None) -> Replica:
        if part is None:
            replica = Replica(self._module, self.layout, self.loss)
        else:
            assert self.carver is not None
            replica = Replica(self.carver.network(whom, part), part.layout, self.loss)
        replica.draws_elsewhere = self._draws_elsewhere
        return replica

    def _rehearse(self) -> bool:
        """One gradient on two samples: shows whether model, loss and data fit, and whether the model draws."""
        inputs, targets = self.samples.batch(np.arange(min(2, len(self.samples))))
        replica = Replica(self._module, self.layout, self.loss)
        try:
            replica.draws_elsewhere = False
            with Draws(0) as draws:
                replica.gradient(inputs, targets, np.random.default_rng(0))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            reason = str(error).strip().splitlines()[0]
            shape = tuple(inputs.shape[1:])
            raise ModelError(f"the model does not fit the data (inputs of shape {shape}): {reason}") from error
        self._draws_elsewhere = bool(draws.drew)
        return self._draws_elsewhere or bool(replica.dropouts)


class Session:
    """One device's turn."""

    def __init__(
        self,
        trainer: Trainer,
        whom: Turn,
        pieces: Mapping[int, tuple[int, int, Payload]],
        share: Share,
        lr: float,
        memory: Any,
        draws: Callable[[str], np.random.Generator],
    ) -> None:
        self._trainer = trainer
        self._whom = whom
        self._part = None if trainer.carver is None else trainer.carver.select(whom)
        self._layout = trainer.layout if self._part is None else self._part.layout
        self._pieces = pieces
        self._share = share
        self._lr = lr
        self._memory = memory
        self._draws = draws
        self._choices: dict[int, Choice] = {}
        self._picking: np.random.Generator | None = None
        self._loaded: set[int] = set()
        self._params: Tensor | None = None
        self._buffers: Tensor | None = None
        self.samples = sum(share.sizes)
        self.loss = 0.0
        self._noted: Noted | None = None

    @property
    def losses(self) -> Mapping[int, float]:
        return {} if self._noted is None else self._noted.losses

    # --- before ----------------------------------------------------------------------------------------------------

    def choose(self, batch: int, affordable: float) -> float:
        carver = self._trainer.carver
        assert carver is not None
        if self._picking is None:
            self._picking = self._draws("choose")
        choice = self._choices[batch] = carver.choose(self._whom, affordable, self._picking)
        return choice.share

    # --- train -----------------------------------------------------------------------------------------------------

    def train(self, beat: Beat) -> None:
        replica = self._trainer.replica(self._whom, self._part)
        replica.loss = self._loss(replica.loss)
        walk = self._trainer.local.begin(replica, self._lr)
        if beat.holds and beat.overlapped and not self._lends:
            self._train_paced(replica, walk, beat)
        else:
            self._train_plainly(replica, walk, beat)

    def _loss(self, loss: Loss) -> Loss:
        """As this turn uses it: noted by class where that is wanted, and with the job's remedy against skew."""
        if self._share.learned is not None:
            loss = self._noted = Noted(loss)
        remedy = self._trainer.remedy
        return loss if remedy is None else remedy.loss(self._whom.device, loss)

    def _train_plainly(self, replica: Replica, walk: Walk, beat: Beat) -> None:
        if beat.holds and beat.overlapped:
            for layer in range(self._layout.layers):
                beat.before(layer)
        self._load_whole(replica)
        before = replica.state_buffers()
        walk.start()
        rng, units = self._rng(), self._draws("units") if self._lends else None
        for place, (inputs, targets, share) in enumerate(self._data(rng)):
            if beat.holds:
                beat.batch(place)
            self._step(replica, walk, place, (inputs, targets), share, rng, units)
        self._params, self._buffers = self._cut(walk.update(), replica.buffers_since(before))
        if beat.holds and beat.overlapped:
            beat.half(first=True, last=True)
            for layer in reversed(range(self._layout.layers)):
                beat.after(layer)
        if beat.holds:
            beat.done()

    def _step(
        self,
        replica: Replica,
        walk: Walk,
        place: int,
        batch: tuple[Tensor, Tensor],
        share: float,
        rng: np.random.Generator | None,
        units: np.random.Generator | None,
    ) -> None:
        draws = rng if self._trainer.draws else None
        if units is not None:
            assert self._trainer.carver is not None
            loan = self._trainer.carver.lend(replica, self._whom, self._choices.get(place), units)
            loan.replica.loss = replica.loss
            gradient, loss = loan.replica.gradient(*batch, draws)
            walk.step_on(loan, gradient, share)
            loan.close()
        else:
            gradient, loss = replica.gradient(*batch, draws)
            walk.step(gradient, share)
        self.loss += loss * share

    def _load_whole(self, replica: Replica) -> None:
        """All pieces; those of a part on loan go to their places in the whole model."""
        if self._part is None or not self._lends:
            self._load(replica, range(self._layout.layers))
            return
        pieces = [self._pieces[first][2].arrays for first in sorted(self._pieces)]
        for numbers, places, which in (
            (replica.numbers.params, self._part.params, 0), (replica.numbers.buffers, self._part.buffers, 1),
        ):  # fmt: skip
            numbers[places] = torch.cat([torch.from_numpy(arrays[which]) for arrays in pieces])
        replica.settle()

    def _cut(self, params: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor]:
        """The update as it is pushed: of the part that was pulled."""
        if self._part is None or not self._lends:
            return params, buffers
        return params[self._part.params], buffers[self._part.buffers]

    @property
    def _lends(self) -> bool:
        return self._trainer.carver is not None and self._trainer.carver.lends

    def _train_paced(self, replica: Replica, walk: Walk, beat: Beat) -> None:
        """The first forward waits for segments, layer by layer; the last backward hands over updates likewise."""
        paced, rng = self._trainer.paced(replica), self._rng()
        draws = rng if self._trainer.draws else None
        last = len(self._share.sizes) - 1
        self._params = torch.empty_like(replica.numbers.params)
        for place, (inputs, targets, share) in enumerate(self._data(rng)):
            beat.batch(place)

            def arrived(layer: int) -> None:
                beat.before(layer)
                self._load(replica, (layer,))

            def halfway(loss: float, place: int = place, share: float = share) -> None:
                self.loss += loss * share
                if place == 0:
                    walk.start()
                beat.half(first=place == 0, last=place == last)
                if place == last:
                    self._buffers = replica.buffers_since(self._pulled_buffers(replica))

            def ready(layer: int, share: float = share) -> None:
                entries, _ = self._layout.slices(layer, layer)
                walk.step(paced.flat, share, entries)
                assert self._params is not None
                self._params[entries] = walk.update(entries)
                beat.after(layer)

            gradient, _ = paced.gradient(
                inputs, targets, draws,
                before=arrived if place == 0 else None, between=halfway, ready=ready if place == last else None,
            )  # fmt: skip
            if place != last:
                walk.step(gradient, share)

    def _data(self, rng: np.random.Generator | None) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Inputs, targets, and which share of the turn's samples they are."""
        samples = self._share.samples or self._trainer.samples
        for indices in self._share.batches():
            yield *samples.batch(indices, rng), len(indices) / max(self.samples, 1)

    def _rng(self) -> np.random.Generator | None:
        samples = self._share.samples or self._trainer.samples
        return self._share.rng() if self._trainer.draws or samples.draws else None

    def _load(self, replica: Replica, layers: Sequence[int]) -> None:
        """Take over the pieces that begin at these layers."""
        for first in layers:
            if first in self._pieces and first not in self._loaded:
                self._loaded.add(first)
                _, last, payload = self._pieces[first]
                params, buffers = payload.arrays
                replica.load(first, last, torch.from_numpy(params), torch.from_numpy(buffers))
        replica.settle()

    def _pulled_buffers(self, replica: Replica) -> Tensor:
        """The buffers as they came: by now the first forward pass has changed the replica's."""
        pulled = [torch.from_numpy(self._pieces[first][2].arrays[1]) for first in sorted(self._pieces)]
        return torch.cat(pulled) if pulled else replica.numbers.buffers

    # --- after -----------------------------------------------------------------------------------------------------

    def encode(self, first: int, last: int) -> Payload:
        assert self._params is not None, "nothing was trained"
        assert self._buffers is not None, "nothing was trained"
        params, buffers = self._layout.slices(first, last)
        coded = self._trainer.codec.encode(self._params[params], self._memory, params)
        kept = self._buffers[buffers].numpy()
        return Payload(coded.nbytes + kept.nbytes, (*coded.arrays, kept))

    def retract(self, first: int, last: int, payload: Payload) -> None:
        if self._memory is not None:
            params, _ = self._layout.slices(first, last)
            *coded, _ = payload.arrays
            self._trainer.codec.retract(Payload(0, tuple(coded)), self._memory, params)

"""Sends copies of a stage's versions to its replica holder, in chunks, while the link is idle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from potluck.journal import Span
from potluck.loops.node import COORDINATOR, Node
from potluck.loops.pipeline.messages import Kept, Replica
from potluck.loops.pipeline.replication import next_version_to_copy
from potluck.loops.pipeline.stage_backend import StageBackend, split_payload
from potluck.loops.pipeline.stage_link import StageLink, WakeSignal

if TYPE_CHECKING:
    from potluck.loops.pipeline.pipeline_stage import PipelineStage

__all__ = ["StageReplicator"]


class StageReplicator:
    """One stage's copies for one replica holder."""

    def __init__(self, stage: PipelineStage, holder: str, stride: int) -> None:
        self._stage = stage
        self._node: Node = stage.node
        self._backend: StageBackend = stage.backend
        self._link: StageLink = stage.link
        self.holder = holder
        self._stride = stride
        # How many batches the stage may be ahead of the confirmed version; 0: any number.
        self._max_lag = stage.settings.replication.lag_limit(stride, whole_versions=holder == COORDINATOR)
        self.sent_chunks = 0  # of versions that were sent for the first time
        self._can_send_step = False  # whether the holder can apply a step to the version it was sent last
        self._sent_version = stage.versions.start - 1  # the newest version that was sent and need not be sent again
        self._newest_sent_version = self._sent_version
        self._kept_version = stage.versions.start - 1  # the newest version that the holder has confirmed
        self._unanswered: dict[int, tuple[float, int]] = {}  # by version: when it was sent, and its bytes
        self._is_sending = False
        self._wake = WakeSignal()

    def delays_version(self, version: int) -> bool:
        """Whether the stage must not make this version before the holder has confirmed an older one."""
        return bool(self._max_lag) and version > self._kept_version + self._max_lag

    @property
    def awaited_version(self) -> int | None:
        """The version that is sent completely and that the holder has not confirmed; None while one is being sent."""
        return None if self._is_sending else max(self._unanswered, default=None)

    def notify_version(self) -> None:
        """A new version is ready to be copied."""
        self._wake.notify()

    def handle_kept(self, kept: Kept) -> None:
        if (kept.first, kept.last) != (self._stage.first, self._stage.last) or kept.version not in self._unanswered:
            return
        began, nbytes = self._unanswered.pop(kept.version)
        if kept.whole:
            self._kept_version = max(self._kept_version, kept.version)
            self._unanswered = {version: sent for version, sent in self._unanswered.items() if version > kept.version}
            fields = {"to": self.holder, "version": kept.version, "bytes": nbytes}
            self._node.record(Span(self._node.name, "replicate", began, self._node.now(), fields))
        else:
            self._resend_from_kept()
        self._wake.notify()

    async def run(self) -> None:
        """Send new versions without waiting for answers; one that stays unanswered for too long is sent again."""
        pause = float(self._stage.settings.retry)
        while True:
            version = next_version_to_copy(
                [held for held in self._stage.versions.weights if held > self._sent_version],
                self._stride,
                in_order=bool(self._max_lag),
            )
            if version is not None:
                await self._send_version(version)
            elif not await self._wake.wait(pause if self._unanswered else None):
                self._resend_from_kept()

    def _resend_from_kept(self) -> None:
        """A chunk was lost: continue from the confirmed version, with a whole version instead of a step."""
        self._sent_version = self._kept_version
        self._unanswered.clear()
        self._can_send_step = False

    async def _send_version(self, version: int) -> None:
        stage, versions = self._stage, self._stage.versions
        step = versions.steps.get(version) if self._can_send_step and self._sent_version == version - 1 else None
        payload = self._pack_version(versions.weights[version]) if step is None else self._backend.pack_step(*step)
        count = max(1, math.ceil(payload.nbytes / stage.settings.replication.chunk))
        self._sent_version, self._can_send_step = (
            version,
            stage.settings.replication.sends_steps and self.holder != COORDINATOR,
        )
        self._unanswered[version] = (self._node.now(), payload.nbytes)
        self._link.count_bytes(payload.nbytes)
        self._is_sending, is_first_time = True, version > self._newest_sent_version
        self._newest_sent_version = max(self._newest_sent_version, version)
        for index, chunk in enumerate(split_payload(payload, count)):
            if not self.delays_version(versions.applied + 1):
                await self._link.wait_until_idle(float(stage.settings.retry))
            await self._node.send(
                self.holder,
                Replica(
                    chunk, term=stage.term, first=stage.first, last=stage.last, version=version,
                    made=versions.term_that_made(version), place=index, count=count, step=step is not None,
                    drops=stage.lr_drops,
                ),
            )  # fmt: skip
            self.sent_chunks += is_first_time
        self._is_sending = False

    def _pack_version(self, weights: Any) -> Any:
        stage = self._stage
        return self._backend.pack_layers(weights, stage.first, stage.last, stage.settings.replication.optimizer_state)

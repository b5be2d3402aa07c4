"""A thread that says at a steady pace that we are here, whatever the event loop and the processor are busy with."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

import zenoh

from potluck.worlds.live.notes import Note
from potluck.worlds.live.post import Post
from potluck.worlds.live.wire import encode_frame

__all__ = ["BEATS_PER_LEASE", "Heart"]

BEATS_PER_LEASE = 5

_log = logging.getLogger("potluck")


class Heart:
    """Beats until it is stopped."""

    def __init__(self, post: Post, life: int, lease: float, beat: Callable[[], Note]) -> None:
        self._post = post
        self._life = life
        self._interval = lease / BEATS_PER_LEASE
        self._beat = beat
        self._stop = threading.Event()
        self._to: Mapping[str, int] = {}
        self._is_cut: Callable[[str], bool] = lambda name: False
        self._thread = threading.Thread(target=self._run, name=f"potluck-heart-{post.name}", daemon=True)

    def start(self, is_cut: Callable[[str], bool]) -> None:
        self._is_cut = is_cut
        self._thread.start()

    def beat_for(self, lives: Mapping[str, int]) -> None:
        """From now on for these; a new mapping each time, since the thread reads it."""
        self._to = lives

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2 * self._interval + 5.0)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            for name, life in self._to.items():
                if not self._is_cut(name):
                    self._say(name, life)

    def _say(self, name: str, life: int) -> None:
        try:
            self._post.say_now(name, encode_frame(self._life, life, self._beat()))
        except zenoh.ZError as error:
            _log.debug("a heartbeat for %s did not get out: %s", name, error)

"""The page that follows runs: served on this machine, fed by reading journals, so that a run never waits for it.

/ · runs.json · run/ID/ · run/ID/events (server-sent) · run/ID/report.html · compare?run=ID&run=ID · metrics
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from potluck.report.folder import RunFolder, Stamp, find
from potluck.report.following import Follower, Glance
from potluck.report.metrics import metrics
from potluck.report.page import page

__all__ = ["app", "is_loopback", "server"]

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")
_SHARE_OF_TIME = 0.02  # of one core that following may take
_PATIENCE_S = 0.5
_LONGEST_S = 20.0
_SOON_S = 0.2
_FRESH = {"Cache-Control": "no-store"}


class Runs:
    """The runs in a folder, with what has been read of each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._followers: dict[Path, Follower] = {}
        self._glances: dict[Path, Glance] = {}
        self._figures: dict[Path, Figures] = {}

    def listed(self) -> list[dict[str, Any]]:
        return [self._glances.setdefault(run.path, Glance(run)).entry() for run in find(self.root)]

    def follower(self, name: str) -> Follower:
        """Only what the folder lists can be asked for, so a name cannot lead elsewhere."""
        run = self._named(name)
        if run is None:
            raise HTTPException(404, f"there is no run {name!r} in {self.root}")
        return self._followers.setdefault(run.path, Follower(run))

    def _named(self, name: str) -> RunFolder | None:
        return next((run for run in find(self.root) if run.name == name), None)

    def measured(self) -> str:
        """The running ones, and the newest of the others."""
        found = find(self.root)
        wanted = [run for place, run in enumerate(found) if place == 0 or run.status() == "running"]
        return metrics([self._figures_of(run).now() for run in wanted])

    def _figures_of(self, run: RunFolder) -> Figures:
        follower = self._followers.setdefault(run.path, Follower(run))
        return self._figures.setdefault(run.path, Figures(follower))


class Figures:
    """What is measured of a run: reckoned anew when its files have changed, and no oftener than may cost its share."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._lock = threading.Lock()
        self._stamps: tuple[Stamp, ...] = ()
        self._known: dict[str, Any] = {}
        self._due = 0.0

    def now(self) -> dict[str, Any]:
        with self._lock:
            stamps = self._follower.run.stamps()
            if stamps != self._stamps and time.monotonic() >= self._due:
                self._reckon(stamps)
            return {**self._known, "status": self._follower.run.status()}

    def _reckon(self, stamps: tuple[Stamp, ...]) -> None:
        began = time.thread_time()
        self._follower.look()
        seen = self._follower.view()[0]
        self._known = {name: seen[name] for name in ("id", "recipe", "figures", "devices")}
        self._stamps = stamps
        self._due = time.monotonic() + min((time.thread_time() - began) / _SHARE_OF_TIME, _LONGEST_S)


def is_loopback(host: str) -> bool:
    return host in _LOOPBACK


class Pages:
    """What is answered at each address."""

    def __init__(self, root: Path, closing: Callable[[], bool]) -> None:
        self._runs = Runs(root)
        self._closing = closing

    def routes(self) -> list[Route]:
        return [
            Route("/", self.index),
            Route("/runs.json", self.listed),
            Route("/run/{name}", self.to_folder),
            Route("/run/{name}/", self.one),
            Route("/run/{name}/events", self.events),
            Route("/run/{name}/report.html", self.report),
            Route("/compare", self.compare),
            Route("/metrics", self.measured),
        ]

    async def index(self, request: Request) -> Response:
        return HTMLResponse(page("runs", "Potluck: runs", served=True))

    async def listed(self, request: Request) -> Response:
        found = await run_in_threadpool(self._runs.listed)
        return Response(msgspec.json.encode(found), media_type="application/json", headers=_FRESH)

    async def to_folder(self, request: Request) -> Response:
        return RedirectResponse(request.url.path + "/")

    async def one(self, request: Request) -> Response:
        return HTMLResponse(page("live", f"Potluck: {self._asked(request).run.name}", served=True))

    async def events(self, request: Request) -> Response:
        feed = _feed(self._asked(request), self._closing)
        return StreamingResponse(feed, media_type="text/event-stream", headers=_FRESH)

    async def report(self, request: Request) -> Response:
        return HTMLResponse(await run_in_threadpool(_report, [self._asked(request)]))

    async def compare(self, request: Request) -> Response:
        followers = [self._runs.follower(name) for name in request.query_params.getlist("run")]
        if not followers:
            raise HTTPException(404, "say which runs: compare?run=ID&run=ID")
        return HTMLResponse(await run_in_threadpool(_report, followers))

    async def measured(self, request: Request) -> Response:
        text = await run_in_threadpool(self._runs.measured)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def _asked(self, request: Request) -> Follower:
        return self._runs.follower(request.path_params["name"])


def server(root: Path, host: str = "127.0.0.1", port: int = 0) -> uvicorn.Server:
    """A server for the runs in a folder; told to end, it first ends what it tells those who follow a run."""

    def closing() -> bool:
        return found.should_exit

    application = app(root, host, closing)
    found = uvicorn.Server(uvicorn.Config(application, port=port, log_level="warning", timeout_graceful_shutdown=2))
    return found


def app(root: Path, host: str = "127.0.0.1", closing: Callable[[], bool] = lambda: False) -> Starlette:
    """The application; on loopback it answers only to loopback's own names, whatever a web page elsewhere tries."""
    hosts = ["localhost", "127.0.0.1", "[::1]"] if is_loopback(host) else ["*"]
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    return Starlette(routes=Pages(root, closing).routes(), middleware=[guard])


async def _feed(follower: Follower, closing: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The whole run once, then what is new; it ends when the run has ended and all of it was told."""
    await run_in_threadpool(follower.look)
    life = follower.life
    shown, seen = await run_in_threadpool(follower.view)
    yield _event("whole", shown)
    pause, status = _PATIENCE_S, shown["status"]
    while status in ("running", "silent"):
        if await _closed_within(pause, closing):
            return
        began = time.process_time()
        if await run_in_threadpool(follower.look) or follower.run.status() != status:
            since = seen if follower.life == life else {}
            shown, seen = await run_in_threadpool(follower.view, since)
            yield _event("more" if follower.life == life else "whole", shown)
            life, status = follower.life, shown["status"]
        else:
            yield b": nothing new\n\n"
        pause = min(max(_PATIENCE_S, (time.process_time() - began) / _SHARE_OF_TIME), _LONGEST_S)
    yield _event("over", {"status": status})


async def _closed_within(seconds: float, closing: Callable[[], bool]) -> bool:
    """Wait, but not on when the server is to end; whether it is."""
    until = time.monotonic() + seconds
    while not closing() and (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, _SOON_S))
    return closing()


def _report(followers: list[Follower]) -> str:
    views = []
    for follower in followers:
        follower.look()
        views.append(follower.view()[0])
    return page("report", f"Potluck: {' · '.join(one['title'] for one in views)}", views)


def _event(name: str, data: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"

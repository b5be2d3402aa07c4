"""Serves the live pages of the runs in a folder. It only reads journals, so a run never waits for it.

/ · runs.json · run/ID/ · run/ID/events (server-sent) · run/ID/report.html · compare?run=ID&run=ID · metrics
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from potluck.report.html_page import encode_shown, page_policy, render_page
from potluck.report.journal_follower import JournalFollower, RunOverview
from potluck.report.run_folder import RunFolder, Stamp, find_runs

__all__ = ["create_app", "create_server", "is_loopback", "prometheus_text"]


_LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")
_TIME_FRACTION = 0.02  # of one core that following a run may use
_MIN_PAUSE_S = 0.5
_MAX_PAUSE_S = 20.0
_CLOSING_POLL_S = 0.2
_NO_CACHE = {"Cache-Control": "no-store"}

_RUN_METRICS = {
    "accuracy": ("potluck_accuracy", "gauge", "Accuracy on held-out data, from 0 to 1."),
    "loss": ("potluck_loss", "gauge", "Loss on held-out data, else in training."),
    "rounds": ("potluck_rounds_total", "counter", "Closed rounds."),
    "time_s": ("potluck_time_seconds", "counter", "Seconds on the run's clock."),
    "bytes": ("potluck_bytes_total", "counter", "Bytes sent and received by all devices."),
    "energy_j": ("potluck_energy_joules", "counter", "Board watts times busy seconds, all devices."),
    "lost": ("potluck_lost_total", "counter", "How often a device was lost."),
    "late": ("potluck_late_total", "counter", "How often a device was late for its round."),
}


class RunCollection:
    """The runs in a folder, with what was read of each so far."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._followers: dict[Path, JournalFollower] = {}
        self._overviews: dict[Path, RunOverview] = {}
        self._metrics: dict[Path, RunMetrics] = {}

    def list_runs(self) -> list[dict[str, Any]]:
        return [self._overviews.setdefault(run.path, RunOverview(run)).to_entry() for run in find_runs(self.root)]

    def follower_of(self, name: str) -> JournalFollower:
        """The follower of a listed run; a name cannot lead outside the folder."""
        run = self._find_run(name)
        if run is None:
            raise HTTPException(404, f"no run {name!r} in {self.root}")
        return self._followers.setdefault(run.path, JournalFollower(run))

    def _find_run(self, name: str) -> RunFolder | None:
        return next((run for run in find_runs(self.root) if run.name == name), None)

    def metrics_text(self) -> str:
        """Metrics of the running runs and of the newest one."""
        wanted = [run for index, run in enumerate(find_runs(self.root)) if index == 0 or run.run_status() == "running"]
        return prometheus_text([self._metrics_of(run).current_figures() for run in wanted])

    def _metrics_of(self, run: RunFolder) -> RunMetrics:
        follower = self._followers.setdefault(run.path, JournalFollower(run))
        return self._metrics.setdefault(run.path, RunMetrics(follower))


class RunMetrics:
    """The metrics of a run, recomputed when its files changed and only as often as the time budget allows."""

    def __init__(self, follower: JournalFollower) -> None:
        self._follower = follower
        self._lock = threading.Lock()
        self._stamps: tuple[Stamp, ...] = ()
        self._figures: dict[str, Any] = {}
        self._due = 0.0

    def current_figures(self) -> dict[str, Any]:
        with self._lock:
            stamps = self._follower.run.file_stamps()
            if stamps != self._stamps and time.monotonic() >= self._due:
                self._recompute_figures(stamps)
            return {**self._figures, "status": self._follower.run.run_status()}

    def _recompute_figures(self, stamps: tuple[Stamp, ...]) -> None:
        began = time.thread_time()
        self._follower.read_new()
        view = self._follower.current_view()[0]
        self._figures = {name: view[name] for name in ("id", "recipe", "figures", "devices")}
        self._stamps = stamps
        self._due = time.monotonic() + min((time.thread_time() - began) / _TIME_FRACTION, _MAX_PAUSE_S)


def is_loopback(host: str) -> bool:
    return host in _LOOPBACK


class ReportPages:
    """The handlers of all routes."""

    def __init__(self, root: Path, closing: Callable[[], bool]) -> None:
        self._runs = RunCollection(root)
        self._closing = closing

    def routes(self) -> list[Route]:
        return [
            Route("/", self.runs_page),
            Route("/runs.json", self.runs_json),
            Route("/run/{name}", self.redirect_to_run),
            Route("/run/{name}/", self.run_page),
            Route("/run/{name}/events", self.run_events),
            Route("/run/{name}/report.html", self.report_page),
            Route("/compare", self.comparison_page),
            Route("/metrics", self.metrics_page),
        ]

    async def runs_page(self, request: Request) -> Response:
        return HTMLResponse(render_page("runs", "Potluck: runs", served=True))

    async def runs_json(self, request: Request) -> Response:
        runs = await run_in_threadpool(self._runs.list_runs)
        return Response(encode_shown(runs), media_type="application/json", headers=_NO_CACHE)

    async def redirect_to_run(self, request: Request) -> Response:
        return RedirectResponse(request.url.path + "/")

    async def run_page(self, request: Request) -> Response:
        return HTMLResponse(render_page("live", f"Potluck: {self._requested_follower(request).run.name}", served=True))

    async def run_events(self, request: Request) -> Response:
        feed = _event_stream(self._requested_follower(request), self._closing)
        return StreamingResponse(feed, media_type="text/event-stream", headers=_NO_CACHE)

    async def report_page(self, request: Request) -> Response:
        return HTMLResponse(await run_in_threadpool(_render_followers, [self._requested_follower(request)]))

    async def comparison_page(self, request: Request) -> Response:
        followers = [self._runs.follower_of(name) for name in request.query_params.getlist("run")]
        if not followers:
            raise HTTPException(404, "no run given; use compare?run=ID&run=ID")
        return HTMLResponse(await run_in_threadpool(_render_followers, followers))

    async def metrics_page(self, request: Request) -> Response:
        text = await run_in_threadpool(self._runs.metrics_text)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def _requested_follower(self, request: Request) -> JournalFollower:
        return self._runs.follower_of(request.path_params["name"])


def create_server(root: Path, host: str = "127.0.0.1", port: int = 0) -> uvicorn.Server:
    """A server for the runs in a folder; on shutdown it first ends its event streams."""

    def is_closing() -> bool:
        return server.should_exit

    application = create_app(root, host, is_closing)
    server = uvicorn.Server(uvicorn.Config(application, port=port, log_level="warning", timeout_graceful_shutdown=2))
    return server


def create_app(root: Path, host: str = "127.0.0.1", closing: Callable[[], bool] = lambda: False) -> Starlette:
    """The application; on loopback it only answers to loopback host names, which prevents DNS rebinding."""
    hosts = ["localhost", "127.0.0.1", "[::1]"] if is_loopback(host) else ["*"]
    middleware = [Middleware(SecurityHeaders), Middleware(TrustedHostMiddleware, allowed_hosts=hosts)]
    return Starlette(routes=ReportPages(root, closing).routes(), middleware=middleware)


class SecurityHeaders:
    """Adds the headers that confine a page to every response, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._headers = {
            "Content-Security-Policy": f"{page_policy(served=True)}; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_confined(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._app(scope, receive, send_confined)


async def _event_stream(follower: JournalFollower, closing: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Sends the whole run, then updates; ends when the run has ended and everything was sent."""
    await run_in_threadpool(follower.read_new)
    generation = follower.generation
    view, positions = await run_in_threadpool(follower.current_view)
    yield _encode_event("whole", view)
    pause, status, warning = _MIN_PAUSE_S, view["status"], view["warning"]
    while status in ("running", "silent"):
        if await _closes_within(pause, closing):
            return
        began = time.process_time()
        if await run_in_threadpool(follower.read_new) or _state_of(follower.run) != (status, warning):
            since = positions if follower.generation == generation else {}
            view, positions = await run_in_threadpool(follower.current_view, since)
            yield _encode_event("more" if follower.generation == generation else "whole", view)
            generation, status, warning = follower.generation, view["status"], view["warning"]
        else:
            yield b": nothing new\n\n"
        pause = min(max(_MIN_PAUSE_S, (time.process_time() - began) / _TIME_FRACTION), _MAX_PAUSE_S)
    yield _encode_event("over", {"status": status})


def _state_of(run: RunFolder) -> tuple[str, str]:
    """What may change although nothing is appended to the journal."""
    return run.run_status(), run.storage_warning()


async def _closes_within(seconds: float, closing: Callable[[], bool]) -> bool:
    """Wait unless the server shuts down meanwhile; returns whether it does."""
    until = time.monotonic() + seconds
    while not closing() and (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, _CLOSING_POLL_S))
    return closing()


def _render_followers(followers: list[JournalFollower]) -> str:
    views = []
    for follower in followers:
        follower.read_new()
        views.append(follower.current_view()[0])
    return render_page("report", f"Potluck: {' · '.join(view['title'] for view in views)}", views)


def _encode_event(name: str, data: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode_shown(data) + b"\n\n"


def prometheus_text(views: Iterable[Mapping[str, Any]]) -> str:
    """The metrics of these runs in Prometheus' text format."""
    runs = list(views)
    return "\n".join([*_run_lines(runs), *_device_lines(runs)]) + "\n"


def _run_lines(views: list[Mapping[str, Any]]) -> Iterator[str]:
    for figure, (name, kind, description) in _RUN_METRICS.items():
        yield from (f"# HELP {name} {description}", f"# TYPE {name} {kind}")
        for view in views:
            value = view["figures"].get(figure)
            if value is not None:
                yield f"{name}{_format_labels(run=view['id'], recipe=view['recipe'])} {float(value)!r}"
    yield from ("# HELP potluck_metric A metric of the task on held-out data.", "# TYPE potluck_metric gauge")
    for view in views:
        for metric in view["figures"].get("metrics", ()):
            labels = _format_labels(run=view["id"], recipe=view["recipe"], metric=metric["name"])
            yield f"potluck_metric{labels} {float(metric['value'])!r}"
    yield from ("# HELP potluck_running Whether the run is in progress.", "# TYPE potluck_running gauge")
    yield from (f"potluck_running{_format_labels(run=view['id'])} {int(view['status'] == 'running')}" for view in views)


def _device_lines(views: list[Mapping[str, Any]]) -> Iterator[str]:
    name = "potluck_device_seconds_total"
    yield from (f"# HELP {name} Seconds of a device by what it was doing.", f"# TYPE {name} counter")
    for view in views:
        for device in view["devices"]:
            for activity, spent in device["seconds"].items():
                if spent > 0:
                    yield f"{name}{_format_labels(run=view['id'], device=device['name'], doing=activity)} {spent!r}"
    name = "potluck_device_bytes_total"
    yield from (f"# HELP {name} Bytes sent or received by a device.", f"# TYPE {name} counter")
    for view in views:
        for device in view["devices"]:
            for direction in ("received", "sent"):
                labels = _format_labels(run=view["id"], device=device["name"], direction=direction)
                yield f"{name}{labels} {float(device[direction])!r}"


def _format_labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escape_label(value)}"' for name, value in labels.items()) + "}"


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

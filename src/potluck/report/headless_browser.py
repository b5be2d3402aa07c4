"""Drives a headless Chromium over its debugging pipe, to save figures as PNG files and to test pages.

One process, two pipes, JSON separated by NUL bytes; needs nothing but the browser.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from potluck.errors import UserError

__all__ = ["HeadlessBrowser", "find_browser", "save_figure_images"]

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-extensions", "--hide-scrollbars", "--mute-audio", "--disable-background-networking",
)  # fmt: skip
_IMAGE_SCALE = 2.0  # image pixels per page pixel


def find_browser() -> str | None:
    """The path of a Chromium, Chrome or headless shell, or of the program that $POTLUCK_BROWSER names."""
    named = os.environ.get("POTLUCK_BROWSER")
    return next((path for name in ([named] if named else _NAMES) if (path := shutil.which(name))), None)


class HeadlessBrowser:
    """One page in one browser; console errors and uncaught exceptions are collected in `errors`."""

    def __init__(self, width: int = 1360, height: int = 900, dark: bool = False, timeout_s: float = 30.0) -> None:
        path = find_browser()
        if path is None:
            raise UserError(
                "no Chromium or Chrome found; install one (on Debian: apt-get install chromium),"
                " or save single figures with the PNG button of the page"
            )
        self.errors: list[str] = []
        self._timeout_s = timeout_s
        self._numbers = itertools.count(1)
        self._unread = b""
        self._session: str | None = None
        self._home = Path(tempfile.mkdtemp(prefix="potluck-browser-"))
        self._process = self._start_process(path)
        self._attach_page(width, height, dark)

    def _start_process(self, path: str) -> subprocess.Popen[bytes]:
        """The browser reads commands from descriptor 3 and answers on 4."""
        read_end, self._out = os.pipe()
        self._in, write_end = os.pipe()
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # the sandbox refuses to run as root
        command = [path, *_FLAGS, *sandbox, f"--user-data-dir={self._home}", "about:blank"]
        with_pipes = f'exec "$@" 3<&{read_end} 4>&{write_end}'
        process = subprocess.Popen(
            ["bash", "-c", with_pipes, "bash", *command],
            pass_fds=(read_end, write_end),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_end)
        os.close(write_end)
        return process

    def _attach_page(self, width: int, height: int, dark: bool) -> None:
        target = self.send_command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send_command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send_command(f"{domain}.enable")
        self.resize_page(width, height)
        self.send_command(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the browser, killing it if necessary, and remove its profile folder."""
        self._session = None
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self.send_command("Browser.close")
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._remove_home()

    def _remove_home(self) -> None:
        for _ in range(20):
            shutil.rmtree(self._home, ignore_errors=True)
            if not self._home.exists():
                return
            time.sleep(0.05)  # its helper processes exit a moment later and still write

    # --- the page --------------------------------------------------------------------------------------------------

    def resize_page(self, width: int, height: int, scale: float = 1.0) -> None:
        self.send_command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def open(self, address: str) -> None:
        """Load a page and wait until it reports that it is drawn."""
        self.send_command("Page.navigate", url=address)
        self.wait_for("document.documentElement.dataset.ready !== undefined")

    def open_file(self, path: Path) -> None:
        self.open(path.resolve().as_uri())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.send_command("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "the page raised"))
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        until = time.monotonic() + self._timeout_s
        while not self._evaluates_true(expression):
            if time.monotonic() > until:
                raise TimeoutError(
                    f"{expression!r} did not become true in {self._timeout_s:g} s; errors of the page: {self.errors}"
                )
            time.sleep(0.05)

    def _evaluates_true(self, expression: str) -> bool:
        try:
            return bool(self.evaluate(f"Boolean({expression})"))
        except RuntimeError:
            return False  # the page is being replaced

    def move_to(self, x: float, y: float) -> None:
        self.send_command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press_mouse(self, x: float, y: float, to: tuple[float, float] | None = None) -> None:
        """Click at a position, or drag to another one."""
        self.move_to(x, y)
        self.send_command("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
        end = to or (x, y)
        if to is not None:
            self.send_command(
                "Input.dispatchMouseEvent", type="mouseMoved", x=end[0], y=end[1], button="left", buttons=1
            )
        self.send_command(
            "Input.dispatchMouseEvent", type="mouseReleased", x=end[0], y=end[1], button="left", clickCount=1
        )

    def scroll_wheel(self, x: float, y: float, delta: float) -> None:
        self.send_command("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=delta)

    def press_key(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.send_command("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send_command("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, whole: bool = False) -> bytes:
        """A PNG of the visible part of the page, or of all of it."""
        image = self.send_command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(image["data"])

    # --- the pipe --------------------------------------------------------------------------------------------------

    def send_command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._out, json.dumps(command).encode() + b"\0")
        until = time.monotonic() + self._timeout_s
        while True:
            message = self._read_message(until)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error'].get('message')}")
                result: dict[str, Any] = message["result"]
                return result
            self._handle_message(message)

    def _read_message(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            chunk = os.read(self._in, 1 << 20)
            if not chunk:
                raise RuntimeError("the browser exited")
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _handle_message(self, message: dict[str, Any]) -> None:
        details = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(details["exceptionDetails"].get("exception", {}).get("description")))
        elif message.get("method") == "Log.entryAdded" and details["entry"]["level"] == "error":
            self.errors.append(str(details["entry"]["text"]))
        elif message.get("method") == "Runtime.consoleAPICalled" and details["type"] in ("error", "assert"):
            self.errors.append(str(details["args"]))


def save_figure_images(page: Path, folder: Path, width: int = 1240) -> list[Path]:
    """Write one PNG for each figure of an HTML report; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    with HeadlessBrowser(width, 900) as browser:
        browser.resize_page(width, 900, scale=_IMAGE_SCALE)
        browser.open_file(page)
        figures: dict[str, str] = browser.evaluate("potluckFigures()")
    paths = []
    for name, address in figures.items():
        path = folder / f"{name}.png"
        path.write_bytes(base64.b64decode(address.partition(",")[2]))
        paths.append(path)
    return paths

"""Headless Chromium over its debugging pipe: no driver, no package, no port.

Messages are JSON, each ended by a zero byte; Chromium reads them from file descriptor 3 and
writes to 4.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 40.0


def find() -> str | None:
    """The path of a Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab, and what its page did: `errors` it logged, `requests` it made."""

    def __init__(self, path: str, profile: str):
        in_proj, self._out = self._pipe()
        self._in, out_proj = self._pipe()
        null = os.open(os.devnull, os.O_RDWR)
        self._pid = os.posix_spawn(
            path,
            [path, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            dict(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, in_proj, 3),
                (os.POSIX_SPAWN_DUP2, out_proj, 4),
                *((os.POSIX_SPAWN_DUP2, null, standard) for standard in (0, 1, 2)),
            ],
            setpgroup=0,
        )
        for descriptor in (in_proj, out_proj, null):
            os.close(descriptor)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    @staticmethod
    def _pipe() -> tuple[int, int]:
        """Both ends above 9, so that 3 and 4 are free in the child."""
        ends = []
        for end in os.pipe():
            ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10))
            os.close(end)
        return ends[0], ends[1]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._out, b'{"id":0,"method":"Browser.close"}\0')
        for descriptor in (self._out, self._in):
            os.close(descriptor)
        deadline = time.monotonic() + 5
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.killpg(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                break
            time.sleep(0.02)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer; events are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], PATIENCE)
            part = os.read(self._in, 1 << 16) if ready else b""
            if not part:
                raise RuntimeError("Chromium does not answer")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path | str, *, width: int = 1200, dark: bool = False) -> None:
        """Load a file or an address and wait until it is drawn."""
        self.size(width)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[feature])
        self.events.clear()
        self.send("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        deadline = time.monotonic() + PATIENCE
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{path} does not load")
            self.events.append(self._receive())
        self.settle()

    def size(self, width: int, height: int = 900) -> None:
        phone = {"deviceScaleFactor": 2 if width < 600 else 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, **phone)

    def settle(self) -> None:
        """Two frames: the observers of the page have run and what they drew is there."""
        wait = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))"
        self.send("Runtime.evaluate", expression=wait, awaitPromise=True)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives on the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def count(self, selector: str) -> int:
        return self.value(f"document.querySelectorAll({json.dumps(selector)}).length")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.send("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)

    @property
    def errors(self) -> list[str]:
        found = []
        for event in self.events:
            match event:
                case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": what}}:
                    found.append(str(what.get("exception", what)))
                case {"method": "Log.entryAdded", "params": {"entry": entry}}:
                    if entry["level"] in ("error", "warning"):
                        found.append(entry["text"])
                case {
                    "method": "Runtime.consoleAPICalled",
                    "params": {"type": "error" | "warning"},
                }:
                    found.append(str(event["params"]["args"]))
        return found

    @property
    def requests(self) -> list[str]:
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def screenshot(self, path: Path, selector: str | None = None) -> None:
        """The whole page, or one element, as PNG."""
        found = f"(document.querySelector({json.dumps(selector)}) || document.documentElement)"
        x, y, width, height = self.value(
            f"[{found}.getBoundingClientRect()].flatMap("
            "r => [r.x + scrollX, r.y + scrollY, r.width, r.height])"
        )
        box = {"x": x, "y": y, "width": width, "height": height}
        shot = self.send(
            "Page.captureScreenshot", clip={**box, "scale": 1}, captureBeyondViewport=True
        )
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def opened() -> Iterator[Browser | None]:
    """A browser with a profile of its own, or None where there is no Chromium."""
    path = find()
    if path is None:
        yield None
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(path, profile)
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with opened() as browser:
        if browser is None:
            pytest.skip("no Chromium on this machine: install the package chromium")
        yield browser

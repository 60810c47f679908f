"""A real headless Chromium, driven by its DevTools protocol over two pipes. Nothing but it is
needed; where it is missing, CI fails and others skip."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
LIMIT_S = 600


def find() -> str | None:
    """Where Debian's Chromium is, if it is."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    """One tab: what it was asked for, what it said, and what its scripts answer."""

    def __init__(self, write: int, read: BinaryIO) -> None:
        self._write, self._read = write, read
        self._session: dict[str, str] = {}
        self._number = 0
        self.requests: list[str] = []  # addresses, in the order of asking
        self.said: list[str] = []  # errors and warnings on the console, and exceptions
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        found = self.do("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": found["sessionId"]}
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.do(f"{domain}.enable")

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._hear(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def wait_for(self, event: str) -> None:
        """Read on until the browser says this."""
        while (said := self._next()).get("method") != event:
            self._hear(said)

    def open(
        self, path: Path, *, width: int = 1200, dark: bool = False, script: bool = True
    ) -> None:
        """Open a file and wait until it has loaded; what was heard before is forgotten."""
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=900,
                deviceScaleFactor=1, mobile=width < 500)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[scheme])
        self.do("Emulation.setScriptExecutionDisabled", value=not script)
        self.do("Page.navigate", url="about:blank")
        self.wait_for("Page.loadEventFired")
        self.requests.clear()
        self.said.clear()
        self.do("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("Page.loadEventFired")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self.do(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key of the keyboard, down and up."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        code = {"Enter": 13, "Tab": 9, " ": 32}[key]
        for kind in ("keyDown", "keyUp"):
            self.do("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                    **({"text": text} if text and kind == "keyDown" else {}))  # fmt: skip

    def picture(self, path: Path, selector: str = "") -> None:
        """A PNG of what is seen, or of one element, whole."""
        clip = {}
        if selector:
            box = self.ask(
                f"(() => {{const r = document.querySelector({json.dumps(selector)})"
                ".getBoundingClientRect(); return {x: r.x + scrollX, y: r.y + scrollY,"
                " width: r.width, height: r.height, scale: 1}})()"
            )
            clip = {"clip": box, "captureBeyondViewport": True}
        data = self.do("Page.captureScreenshot", **clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.do("Page.printToPDF", printBackground=True)["data"])

    def _next(self) -> dict[str, Any]:
        raw = bytearray()
        while (byte := self._read.read(1)) != b"\0":
            assert byte, "the browser has gone"
            raw += byte
        return json.loads(raw)

    def _hear(self, event: dict[str, Any]) -> None:
        about = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])
            case "Runtime.exceptionThrown":
                self.said.append(json.dumps(about["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                self.said.append(json.dumps(about["args"]))
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                self.said.append(json.dumps(about["entry"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser with an empty profile below `folder`, ended when this ends."""
    program = find()
    assert program
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    shell = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", shell, program, *FLAGS, f"--user-data-dir={folder / 'profile'}"],
            pass_fds=(theirs_in, theirs_out), stdout=log, stderr=log,
        )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    ending = threading.Timer(LIMIT_S, process.kill)
    ending.start()
    try:
        with os.fdopen(ours_in, "rb") as answers:
            page = Page(ours_out, answers)
            yield page
            page.do("Browser.close")
    finally:
        ending.cancel()
        os.close(ours_out)
        process.kill()
        process.wait()

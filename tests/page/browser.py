"""A real browser without a head, spoken to in its own protocol (CDP) over a pipe."""

import base64
import json
import os
import select
import subprocess
from itertools import count
from pathlib import Path
from typing import Any, Self

from tests.eventually import PATIENCE_SECONDS

FLAGS = (
    "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--mute-audio",
    "--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--hide-scrollbars", "--force-device-scale-factor=1",
)  # fmt: skip
DOMAINS = ("Page", "Runtime", "Log", "Network")
PHONE, DESKTOP = 390, 1280


class Browser:
    """Chromium with one tab. Its events are in `events`; a test clears them at its start."""

    def __init__(self, program: str, home: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self._numbers = count(1)
        self._buffer = b""
        self._session: dict[str, str] = {}
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = (program, *FLAGS, f"--user-data-dir={home}", "about:blank")
        with_pipes = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ("bash", "-c", with_pipes, "bash", *command),
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"HOME": str(home), "PATH": os.environ["PATH"]},
        )
        os.close(theirs_in)
        os.close(theirs_out)

    def __enter__(self) -> Self:
        try:
            self._attach()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in DOMAINS:
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Give a command, and wait for its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **self._session}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        answer: dict[str, Any] = answer["result"]
        return answer

    def open(self, url: str, *, width: int = DESKTOP, scheme: str = "light") -> None:
        """Load a page anew, in a window of this width and these colours."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)
        self.run("document.readyState === 'complete' || new Promise(done => addEventListener('load', done))")

    def run(self, script: str) -> Any:
        """Return the result of a script in the page, as JSON."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key, down and up."""
        code = {"Tab": 9, "Enter": 13, "End": 35, "ArrowDown": 40}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self.call("Input.insertText", text=text)

    def screenshot(self, width: int, height: int, top: float = 0) -> bytes:
        """The page's beginning, or what is below `top`, as a PNG."""
        clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(taken["data"])

    def answer(self, *methods: str) -> list[dict[str, Any]]:
        """The events of these kinds."""
        self.run("0")
        return [each for each in self.events if each.get("method") in methods]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], PATIENCE_SECONDS)
            chunk = os.read(self._in, 1 << 16) if ready else b""
            assert chunk, "the browser does not answer"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

"""A real browser without a window, where one is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)

needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")


def browser_command(folder: Path, *options: str) -> list[str]:
    """Return the command that opens a page, which comes last; `folder` gets the browser's own files."""
    return [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'browser'}", *options]


def browser_environment(folder: Path) -> dict[str, str]:
    """Return the environment of this process with another home."""
    return os.environ | {"HOME": str(folder)}


class Tab:
    """A page in the browser, which tests ask over its debugging pipe (Chrome DevTools Protocol).

    Attributes:
        complaints: What the browser has logged: errors, warnings and exceptions.
    """

    def __init__(self, sent: IO[bytes], received: IO[bytes]) -> None:
        self._sent, self._received = sent, received
        self._number, self._session, self.complaints = 0, dict[str, Any](), list[Any]()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters, **self._session}
        self._sent.write(json.dumps(request).encode() + b"\0")
        self._sent.flush()
        while True:
            message = json.loads(b"".join(iter(lambda: self._received.read(1), b"\0")))
            if message.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(message["params"])
            if message.get("id") == self._number:
                assert "error" not in message, message
                return dict(message["result"])

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression, a promise of which is waited for."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def show(self, url: str, width: int, *, dark: bool) -> None:
        """Open a page in a window of this width, in the light or in the dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)


AS_3_AND_4 = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execvp(sys.argv[3], sys.argv[3:])"
"""Program that runs another one with these pipes as files 3 and 4, where the browser has its debugging pipe."""


@contextmanager
def open_tab(folder: Path) -> Iterator[Tab]:
    """Run the browser, and yield a tab of it."""
    (child_in, sent), (received, child_out) = os.pipe(), os.pipe()
    command = [sys.executable, "-c", AS_3_AND_4, str(child_in), str(child_out)]
    command += browser_command(folder, "--remote-debugging-pipe")
    with (
        subprocess.Popen(
            command, pass_fds=(child_in, child_out), stderr=subprocess.DEVNULL, env=browser_environment(folder)
        ) as made,
        os.fdopen(sent, "wb") as sending,
        os.fdopen(received, "rb") as receiving,
    ):
        os.close(child_in)
        os.close(child_out)
        try:
            yield Tab(sending, receiving)
        finally:
            made.kill()

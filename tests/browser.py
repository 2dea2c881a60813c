"""A real browser and a real server for tests of pages: Debian's Chromium driven by Playwright, uvicorn in a thread."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """The browser behind the fixture `chromium`. Skips the test, and says so, where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'vitreous[test]'")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser here: none of {', '.join(NAMES)} is installed (Debian: apt install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found,
            args=["--no-sandbox", "--disable-gpu", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"],
        )
        yield browser
        browser.close()


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    """The application on a free port of loopback; its address, without a slash at the end."""
    import uvicorn

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="auto", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        for _ in range(600):
            if server.started or not thread.is_alive():
                break
            time.sleep(0.05)
        assert server.started, "the server did not start"
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


def until(page: Any, expression: str, argument: Any = None, seconds: float = 15) -> None:
    """Wait until an expression is true. Playwright's own way evaluates text, which the pages' content policy forbids."""
    script = f"argument => Boolean({expression})"
    end = time.monotonic() + seconds
    while not page.evaluate(script, argument):
        assert time.monotonic() < end, f"it did not come true: {expression}"
        page.wait_for_timeout(20)


class Watched:
    """What a page did that it should not: errors on its console, requests to elsewhere; and every request, to be counted."""

    def __init__(self, page: Any, address: str) -> None:
        self.requests: list[str] = []
        self.faults: list[str] = []
        self.expected: tuple[str, ...] = ()  # words of faults that a test provokes
        own = "willReadFrequently"  # advice to tests that look at pixels

        def seen(request: Any) -> None:
            self.requests.append(f"{request.method} {request.url.removeprefix(address)}")
            if not request.url.startswith((address, "data:", "blob:")):
                self.faults.append(f"a request to {request.url}")

        def spoke(message: Any) -> None:
            if message.type in ("error", "warning") and own not in message.text:
                self.faults.append(message.text)

        page.on("request", seen)
        page.on("console", spoke)
        page.on("pageerror", lambda error: self.faults.append(str(error)))

    def since(self, before: int) -> list[str]:
        return [one for one in self.requests[before:] if not one.startswith("GET data:")]

    def unexpected(self) -> list[str]:
        return [fault for fault in self.faults if not any(word in fault for word in self.expected)]

"""Pages in a real browser, which asks nobody for anything."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright import sync_api

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
LOCAL = ("file:", "data:", "blob:")
# What Chromium says of its own speed where a processor draws in three dimensions.
SLOW = ("[.WebGL-", "Canvas2D: Multiple readback operations")
PHONE = {"width": 390, "height": 844}

Open = Callable[..., Any]


class Tabs:
    """Those of a browser: a test has one for itself, and then another test has it.

    To compile the scripts of a page takes six times as long as all the rest. They are compiled once
    for a tab and an address, so all pages are read from one file.
    """

    def __init__(self, browser: Any, folder: Path) -> None:
        self.browser = browser
        self.file = folder / "report.html"
        self.free: dict[str, list[Any]] = defaultdict(list)

    def take(self, **options: Any) -> Any:
        """One with these options of a context."""
        free = self.free[repr(options)]
        return free.pop() if free else self.browser.new_context(**options).new_page()

    def give_back(self, tab: Any, **options: Any) -> None:
        """Nothing of its page stays: what it remembers, the pointer, the page itself."""
        tab.evaluate("localStorage.clear()")
        tab.mouse.move(0, 0)
        tab.goto("about:blank")
        self.free[repr(options)].append(tab)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tabs]:
    if not CHROMIUM.exists():
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(f"CI needs {CHROMIUM}: apt-get install chromium")
        pytest.skip("no Chromium: `apt-get install chromium`")
    with sync_api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield Tabs(started, tmp_path_factory.mktemp("browser"))
        started.close()


@pytest.fixture
def window(browser: Tabs) -> Iterator[Open]:
    """Open a page from disk; at the end no error was logged and nothing was asked for."""
    used: list[tuple[Any, dict[str, Any]]] = []
    problems: list[str] = []
    requests: list[str] = []
    listeners = {
        "console": lambda m: (
            (m.type == "error" or (m.type == "warning" and not m.text.startswith(SLOW)))
            and problems.append(m.text)
        ),
        "pageerror": lambda error: problems.append(str(error)),
        "dialog": lambda dialog: problems.append(f"dialog: {dialog.message}"),
        "request": lambda request: requests.append(request.url),
    }

    def open_page(text: str, fragment: str = "", **options: Any) -> Any:
        browser.file.write_text(text, encoding="utf-8")
        options = {"viewport": {"width": 1200, "height": 800}, **options}
        page = browser.take(**options)
        used.append((page, options))
        for event, listener in listeners.items():
            page.on(event, listener)
        page.goto(browser.file.as_uri() + (f"#{fragment}" if fragment else ""))
        return page

    yield open_page
    for page, options in used:
        browser.give_back(page, **options)
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
    assert problems == []
    assert [url for url in requests if not url.startswith((*LOCAL, "about:blank"))] == []
    assert len([url for url in requests if url.startswith("file:")]) == len(used)

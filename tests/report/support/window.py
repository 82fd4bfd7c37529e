"""Pages in a real browser, which asks nobody for anything."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright import sync_api

# The same engine without a window costs a processor a third less; either will do.
BROWSERS = (Path("/usr/bin/chromium-headless-shell"), Path("/usr/bin/chromium"))
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
LOCAL = ("file:", "data:", "blob:")
# What Chromium says of its own speed where a processor draws in three dimensions.
SLOW = ("[.WebGL-", "Canvas2D: Multiple readback operations")
DESKTOP, PHONE = {"width": 1200, "height": 800}, {"width": 390, "height": 844}

Open = Callable[..., Any]


class Tabs:
    """Those of a browser: a test has one for itself, and then another test has it.

    To compile the library that draws takes six times as long as all the rest. It is compiled once
    for a tab and an address: so all pages are read from one file, in one tab whatever its size and
    colours.
    """

    def __init__(self, browser: Any, folder: Path) -> None:
        self.browser = browser
        self.file = folder / "report.html"
        self.free: dict[str, list[Any]] = defaultdict(list)

    def take(self, *, viewport: Any = DESKTOP, color_scheme: Any = "light", **options: Any) -> Any:
        """One of this size and these colours, with these options of a context."""
        free = self.free[repr(options)]
        if not free:
            free.append(self.browser.new_context(viewport=viewport, **options).new_page())
        tab = free.pop()
        if tab.viewport_size != viewport:
            tab.set_viewport_size(viewport)
        tab.emulate_media(color_scheme=color_scheme)
        return tab

    def give_back(self, tab: Any, **options: Any) -> None:
        """Nothing of its page stays: what it remembers, the pointer, the page itself."""
        tab.evaluate("localStorage.clear()")
        tab.mouse.move(0, 0)
        tab.goto("about:blank")
        options = {k: v for k, v in options.items() if k not in {"viewport", "color_scheme"}}
        self.free[repr(options)].append(tab)


def tabs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tabs]:
    """What a fixture `browser` gives."""
    found = next((one for one in BROWSERS if one.exists()), None)
    if found is None:
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail("CI needs a browser: apt-get install chromium-headless-shell")
        pytest.skip("no Chromium: `apt-get install chromium-headless-shell`")
    with sync_api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=str(found), args=ARGUMENTS)
        yield Tabs(started, tmp_path_factory.mktemp("browser"))
        started.close()


def pages(browser: Tabs) -> Iterator[Open]:
    """What a fixture `window` gives: it opens a page from disk.

    At the end no error was logged and nothing was asked for.
    """
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


def attention_map(page: Any) -> Any:
    """The dialog of the first attention map, once it is drawn."""
    page.get_by_role("button", name="Show its attention map").click()
    dialog = page.get_by_role("dialog")
    dialog.locator(".heatmaplayer image").wait_for(state="attached")
    return dialog

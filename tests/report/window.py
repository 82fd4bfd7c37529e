"""Pages in a real browser, which asks nobody for anything."""

import os
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
PHONE = {"width": 390, "height": 844}

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(f"CI needs {CHROMIUM}: apt-get install chromium")
        pytest.skip("no Chromium: `apt-get install chromium`")
    with sync_api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def window(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open a page from disk; at the end no error was logged and nothing was asked for."""
    contexts, problems, requests = [], [], []

    def open_page(text: str, fragment: str = "", **options: Any) -> Any:
        file = tmp_path / "report.html"
        file.write_text(text, encoding="utf-8")
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: m.type in {"error", "warning"} and problems.append(m.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri() + (f"#{fragment}" if fragment else ""))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(LOCAL)] == []
    assert len([url for url in requests if url.startswith("file:")]) == len(contexts)

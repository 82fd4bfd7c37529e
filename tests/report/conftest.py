"""One browser for all tests of pages: what it has compiled once serves them all."""

import json
from functools import lru_cache
from typing import Any

import pytest

from layerlab.report.pages.inspection import render
from tests.report.support.window import Open, pages, tabs

browser = pytest.fixture(scope="package")(tabs)
window = pytest.fixture(pages)


@lru_cache(maxsize=4)
def rendered(report: str) -> str:
    """The page of a report: neighbours look at the same one."""
    return render(json.loads(report))


@pytest.fixture
def opened(window: Open) -> Open:
    """Open a report, as `window` opens a page."""

    def open_report(report: dict[str, Any], *rest: Any, **options: Any) -> Any:
        return window(rendered(json.dumps(report)), *rest, **options)

    return open_report

"""Every kind of page keeps the rules of axe-core, on a desk in light, on a phone in dark."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerlab.records.parse import read_json
from layerlab.report.figures import export
from layerlab.report.pages import (
    adaptation,
    campaign,
    claims,
    comparison,
    evaluation,
    inspection,
    paired,
    runs,
    study,
    vocabulary,
)
from layerlab.report.pages.shell import read_static
from tests.evaluation.paired.written_samples import judged_sample
from tests.ledger.written_campaign import campaign_sample
from tests.report.browser.test_density_view import weighed
from tests.report.pages.test_evaluation import scored
from tests.report.pages.test_runs import ENTRY, indexed
from tests.report.support.clouded import clouded
from tests.report.support.looked import looked
from tests.report.support.passed import passed
from tests.report.support.race import single
from tests.report.support.sample import sample
from tests.report.support.window import DESKTOP, PHONE
from tests.report.test_chinese import proved, raced

pytestmark = pytest.mark.full

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright",
    reason="axe-playwright-python, of the extra dev, is not installed",
)
STUDIES = Path(__file__).resolve().parents[3] / "docs" / "results" / "studies"
# A drawing is hidden from readers, who are given its label.
LEFT_OUT = {"exclude": [[".main-svg"]]}


def stored(name: str) -> Any:
    return read_json(STUDIES / name / "study.json")


def judged() -> list[dict[str, Any]]:
    keys = ("study", "title", "source", "verdicts", "unit", "created")
    found = [stored(name) for name in ("backward", "ablation-noise")]
    return [{**{key: one[key] for key in keys}, "draws": 4, "error": ""} for one in found]


PAGES: dict[str, Callable[[], str]] = {
    "inspect": lambda: inspection.render(sample(["a", "b"], layers=2, heads=2)),
    "saliency": lambda: inspection.render(looked(["a"], layers=1)),
    "weights": lambda: inspection.render({**weighed(), "findings": []}),
    "features": lambda: inspection.render(clouded(["a"], layers=1)),
    "compare": lambda: comparison.render(raced()),
    "run": lambda: comparison.render(single(updates=100), single=True),
    "adapt": lambda: adaptation.render(passed()),
    "vocabulary": lambda: vocabulary.render(proved()),
    "evaluate": lambda: evaluation.render(scored()),
    "judge": lambda: paired.render(judged_sample()),
    "ledger": lambda: campaign.render(campaign_sample()),
    "study": lambda: study.render(stored("backward")),
    "claims": lambda: claims.render(judged()),
    "runs": lambda: runs.render(indexed(Path("work"), ENTRY, remarks=["a remark"]), Path("work")),
}


def violations(page: Any) -> list[str]:
    """The rules that a page breaks, and where."""
    found = axe.Axe().run(page, context=LEFT_OUT).response["violations"]
    return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]


def open_all(page: Any) -> None:
    """Unfold and draw whatever a page has."""
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for section in page.locator("section.measure, section[data-drawing]").all():
        section.scroll_into_view_if_needed()
        section.locator(":scope[data-drawn]").or_(section).first.wait_for()


@pytest.mark.full
@pytest.mark.parametrize("name", PAGES)
def test_no_page_breaks_a_rule(window, name):
    page = window(PAGES[name](), viewport=DESKTOP)
    open_all(page)
    assert violations(page) == []
    page.set_viewport_size(PHONE)
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []


@pytest.mark.full
def test_what_a_finding_and_a_head_open_breaks_no_rule(window):
    page = window(PAGES["inspect"](), viewport=DESKTOP)
    page.get_by_role("button", name="Show its attention map").first.click()
    page.get_by_role("dialog").locator(".heatmaplayer image").wait_for(state="attached")
    assert violations(page) == []


def lightness(colour: str) -> float:
    """The relative luminance of WCAG."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(lightness, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_every_mark_stands_out_from_its_paper():
    sheets = re.findall(r"--paper: (#\w{6});([^}]*--ramp-2[^}]*)}", read_static("page.css"))
    assert len(sheets) == 3
    papers = {paper for paper, _ in sheets}
    for paper, rest in sheets:
        for name, colour in re.findall(r"--((?:series|ramp)-\d): (#\w{6})", rest):
            assert contrast(colour, paper) >= 3, (name, paper)
    for paper in papers:
        assert all(contrast(colour, paper) >= 3 for colour in adaptation.COLOURS)
    assert all(contrast(colour, "#ffffff") >= 3 for colour in export.COLOURS)


def test_axe_finds_what_is_wrong(window):
    text = PAGES["vocabulary"]()
    assert violations(window(text)) == []
    found = violations(window(text.replace('<html lang="en">', "<html>")))
    assert [one.split(":")[0] for one in found] == ["html-has-lang"]

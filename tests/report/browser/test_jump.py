"""Links within the page end where they say, although sections are drawn late."""

from typing import Any

import pytest

from tests.report.support.sample import sample
from tests.report.support.window import PHONE

pytestmark = pytest.mark.full

DESKTOP = {"width": 1280, "height": 900}
NEAR = (0, 120)
SIZES = pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])


def settled(page: Any, target: str) -> float:
    """The top of a section's heading once it rests near the top, else where it is in the end.

    Busy machines draw late: a heading that rests elsewhere for a moment may still be on its way.
    """
    return page.evaluate(
        """async ([id, low, high]) => {
            const heading = document.querySelector(`#${id} :is(h1, h2), #${id} > summary`);
            let last = null;
            for (let same = 0, n = 0; same < 5 && n < 600; n++) {
                const top = heading.getBoundingClientRect().top;
                same = top === last && low <= top && top <= high ? same + 1 : 0;
                last = top;
                await new Promise((done) => setTimeout(done, 50));
            }
            return last;
        }""",
        [target, *NEAR],
    )


def long_report() -> dict[str, Any]:
    return sample(["a", "b", "c"], layers=8, heads=12)


@pytest.mark.full
@SIZES
def test_every_link_of_the_contents_ends_at_its_heading(opened, size):
    page = opened(long_report(), viewport=size)
    links = page.locator(".contents a")
    targets = [link.get_attribute("href")[1:] for link in links.all()]
    assert len(targets) == len(set(targets)) > 8
    # A phone takes three times as long for each; what comes after another jump is seen there, too.
    for target in [targets[-2], *targets] if size is DESKTOP else targets[-2::-5]:
        page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
        page.locator(f".contents a[href='#{target}']").click()
        top = settled(page, target)
        assert NEAR[0] <= top <= NEAR[1], target
        assert page.evaluate("location.hash") == f"#{target}"


@pytest.mark.full
@pytest.mark.parametrize(
    ("target", "size"),
    [("gain", PHONE), ("docs-gain", DESKTOP), ("docs-gain", PHONE), ("repeat", DESKTOP)],
    ids=["section", "definition", "definition, phone", "repeat"],
)
def test_a_deep_link_ends_at_its_heading(opened, target, size):
    page = opened(long_report(), fragment=target, viewport=size)
    assert NEAR[0] <= settled(page, target) <= NEAR[1]


@pytest.mark.full
@pytest.mark.parametrize(
    ("link", "size"),
    [(".glance a[href='#gain']", PHONE), (".finding a[href='#gain']", DESKTOP)],
    ids=["tile", "finding"],
)
def test_tiles_and_findings_end_at_the_section_they_name(opened, link, size):
    page = opened(long_report(), viewport=size)
    page.locator(link).first.click()
    assert NEAR[0] <= settled(page, "gain") <= NEAR[1]


def test_whoever_scrolls_on_after_a_jump_is_not_pulled_back(opened):
    page = opened(long_report(), viewport=DESKTOP)
    page.locator(".contents a[href='#attention']").click()
    settled(page, "attention")
    page.mouse.move(700, 400)
    page.mouse.wheel(0, 900)
    page.evaluate("document.querySelector('#attention details.values').open = true")
    page.wait_for_timeout(500)
    assert page.locator("#attention h2").evaluate("it => it.getBoundingClientRect().top") < -500


@pytest.mark.full
@pytest.mark.parametrize("by", ["click", "keyboard", "address"])
def test_the_definition_opens_from_its_link(opened, by):
    page = opened(
        long_report(), viewport=DESKTOP, fragment="docs-stream" if by == "address" else ""
    )
    link = page.locator("section#stream").get_by_role("link", name="How it is defined")
    if by == "click":
        link.click()
    elif by == "keyboard":
        link.focus()
        page.keyboard.press("Enter")
    assert NEAR[0] <= settled(page, "docs-stream") <= NEAR[1]
    docs = page.locator("#docs-stream")
    assert docs.locator("pre").is_visible()
    assert "Source: sun24" in docs.inner_text()
    assert docs.locator("summary").evaluate("node => node === document.activeElement")

"""The sources that a page cites stand at its foot, and each of its keys leads there."""

import re

import pytest
from markupsafe import Markup

from layerlab.report.pages.inspection import render
from layerlab.report.views.sources import find_sources, link_sources, read_registry
from tests.house.test_house import sources
from tests.report.support.sample import sample


@pytest.mark.full
def test_every_key_that_a_page_links_has_its_entry():
    page = render(sample())
    links = set(re.findall(r'href="#source-(\w+)"', page))
    entries = re.findall(r'<li id="source-(\w+)">', page)
    assert "kimi25" in links and links <= {*entries}
    assert entries == sorted(set(entries))
    assert "Kimi K2: Open Agentic Intelligence</cite>" in page
    assert "arXiv 2507.20534" in page


def test_a_title_that_is_a_question_has_no_second_mark_behind_it():
    report = sample(["a"], findings=False)
    report["notes"] = [{"title": "t", "text": "michel19, kimi25", "source": "Own"}]
    page = render(report)
    assert "Better than One?</cite> arXiv" in page and "Intelligence</cite>. arXiv" in page


def test_what_nobody_cites_is_not_listed():
    report = sample(["a"], findings=False)
    assert "broder97" not in {source["key"] for source in find_sources(report)}
    text = "As broder97 says, and as nobody99."
    report["notes"] = [{"title": "t", "text": text, "source": "Own"}]
    keys = {source["key"] for source in find_sources(report)}
    assert "broder97" in keys and "nobody99" not in keys


def test_text_is_escaped_and_marks_stay():
    assert link_sources("<b> he24") == '&lt;b&gt; <a href="#source-he24">he24</a>'
    assert link_sources(Markup("<code>x</code> gpt22")) == "<code>x</code> gpt22"


@pytest.mark.full
def test_the_registry_names_every_source_in_full():
    assert len(read_registry()) == len(sources())
    assert all(len(entry) == 4 and all(entry) for entry in read_registry().values())


@pytest.mark.full
def test_a_key_below_a_plot_is_a_link_too(opened):
    page = opened(sample(["a"]))
    page.locator("section#spectrum").scroll_into_view_if_needed()
    page.wait_for_selector("section#spectrum[data-drawn]")
    link = page.locator("#spectrum [data-part=key] a").first
    key = link.inner_text()
    assert link.get_attribute("href") == f"#source-{key}"
    link.click()
    assert page.locator(f"#source-{key}:target").count() == 1

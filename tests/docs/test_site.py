"""The site: built without a warning, complete, and read from disk without asking anybody.

So are links between documents, as the repository shows them.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.report.support.window import DESKTOP, LOCAL, PHONE, tabs

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [path for path in DOCS.rglob("*.md") if "results" not in path.parts]
WRITTEN = [*PAGES, DOCS / "results" / "README.md", ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
# Attributes whose address a browser fetches by itself; besides, `href` of a link tag.
FETCHED = {"src", "srcset", "data", "poster"}

browser = pytest.fixture(scope="module")(tabs)


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    """`make site` on the documents in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the site is made of, apart, so that no other site is touched."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    (folder / "layerlab").symlink_to(ROOT / "layerlab")
    left_out = shutil.ignore_patterns("runs", "report.html", "__pycache__")
    shutil.copytree(DOCS, folder / "docs", ignore=left_out)
    return folder


@pytest.fixture(scope="module")
def site(copy: Path) -> Path:
    """The site, built without a warning, also of what is read for the reference of Python."""
    done = built(copy)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    # What reads docstrings only logs that it could not: --strict lets that pass.
    told = re.sub(r"[\d.]+s", "", said).split()
    assert sorted(told) == sorted("Build started No issues found Build finished in".split()), said
    return copy / "site"


class Page(HTMLParser):
    """What a page leads to, what it fetches, and what it can be led to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"id", "name"} and value:
                self.anchors.add(value)
            elif name == "href" and tag == "a" and value:
                self.links.append(value)
            elif (name in FETCHED or (name == "href" and tag == "link")) and value:
                self.fetched.append(value)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    found = {path: Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    # Shown by a server at whatever address is missing, so its links are those of no place.
    found.pop(site / "404.html")
    return found


@pytest.mark.full
def test_every_document_is_a_page(site, pages):
    for path in [*PAGES, DOCS / "results" / "README.md"]:
        name = path.with_name("index.md") if path.name == "README.md" else path
        assert site / name.relative_to(DOCS).with_suffix(".html") in pages, path


@pytest.mark.full
def test_every_page_is_in_the_navigation(site, pages):
    start = site / "index.html"
    reached, waiting = {start}, [start]
    while waiting:
        page = waiting.pop()
        for link in pages[page].links:
            target = (page.parent / unquote(urlsplit(link).path)).resolve()
            if not urlsplit(link).scheme and target in pages and target not in reached:
                reached.add(target)
                waiting.append(target)
    assert set(pages) == reached


@pytest.mark.full
def test_every_link_of_the_site_leads_somewhere(pages):
    wrong = []
    for path, page in pages.items():
        for link in [*page.links, *page.fetched]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else set()
            missing = parts.fragment and target in pages and unquote(parts.fragment) not in anchors
            if not target.exists() or (missing and parts.fragment != "__comments"):
                wrong.append(f"{path.name}: {link}")
    assert wrong == []


@pytest.mark.full
def test_nothing_is_fetched_from_elsewhere(site, pages):
    assert [one for page in pages.values() for one in page.fetched if urlsplit(one).netloc] == []
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)]+", styles) == []


@pytest.mark.full
def test_no_table_or_list_is_left_as_text(pages, site):
    for path in pages:
        for text in re.findall(r"<p>(.*?)</p>", path.read_text("utf-8"), re.DOTALL):
            assert not re.search(r"^(\| .* \|$|[-*] |\d+\. |```)", text, re.MULTILINE), path


@pytest.mark.full
def test_the_reference_has_every_public_name(site, pages):
    import layerlab

    anchors = pages[site / "api.html"].anchors
    missing = [name for name in layerlab.__all__ if f"layerlab.{name}" not in anchors]
    assert missing == ["__version__"]


@pytest.mark.full
def test_a_link_that_leads_nowhere_stops_the_build(tmp_path):
    settings = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(settings.replace("  - literate-nav\n", ""), "utf-8")
    (tmp_path / "docs" / "site").mkdir(parents=True)
    for name in ("iframe-worker.js", "claims.js", "copy.js", "landmarks.js", "site.css"):
        shutil.copy(DOCS / "site" / name, tmp_path / "docs" / "site")
    (tmp_path / "docs" / "index.md").write_text("# A\n\n[gone](b.md), [gone](#c)\n", "utf-8")
    done = built(tmp_path)
    assert done.returncode != 0
    assert "2 issues found" in done.stdout + done.stderr


@pytest.mark.full
def test_a_browser_reads_it_from_disk_and_searches(site, browser):
    problems: list[str] = []
    asked: list[str] = []
    page = browser.take()
    page.on("console", lambda m: m.type in {"error", "warning"} and problems.append(m.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("participation ratio")
    found = page.get_by_text("participation_ratio").first
    found.wait_for(timeout=20_000)
    found.click()
    page.wait_for_url("**/measures/dimension.html*")
    for name in ("api.html", "variants/pangu-pi.html", "results/index.html"):
        page.goto((site / name).as_uri())
        page.wait_for_load_state("networkidle")
    page.close()
    assert problems == []
    assert [url for url in asked if not url.startswith(LOCAL)] == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "address"),
    [
        ("own variant", "add-a-variant.html"),
        ("compare own variant with llama", "add-a-variant.html"),
        ("logit lens", "measures/lens.html"),
        ("ablation", "measures/ablation.html"),
        ("weights only spectra", "measures/matrices.html"),
        ("weights only differ", "measures/change.html"),
    ],
)
def test_a_search_finds_the_page_of_what_one_calls_it(site, browser, words, address):
    page = browser.take()
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type(words)
    from playwright.sync_api import expect

    # While one types, what stood first for the words so far stands there still.
    first = page.locator("a[href]:visible").filter(has=page.locator("mark")).first
    expect(first).to_have_attribute("href", re.compile(re.escape(address)), timeout=20_000)
    page.close()


@pytest.mark.full
@pytest.mark.parametrize("name", ["what-holds", "measures/lens", "add-a-variant", "api"])
def test_no_page_of_the_site_breaks_a_rule(site, browser, name):
    from tests.report.browser.test_accessibility import violations

    for viewport, scheme in ((DESKTOP, "light"), (PHONE, "dark"), (DESKTOP, "dark")):
        page = browser.take(viewport=viewport, color_scheme=scheme)
        page.goto((site / f"{name}.html").as_uri())
        page.wait_for_load_state("networkidle")
        page.locator("nav.md-code__nav[role=presentation]").first.wait_for(state="attached")
        assert violations(page) == []
        browser.give_back(page)


ROWS = "table[data-claims] tbody tr"


@pytest.mark.full
def test_a_session_is_copied_without_prompts_and_answers(site, browser):
    page = browser.take(permissions=["clipboard-read", "clipboard-write"])
    page.goto((site / "precision.html").as_uri())
    block = page.locator(".highlight").filter(has_text="$ layerlab precision llama").first
    block.hover()
    block.get_by_role("button").first.click()
    page.wait_for_function("navigator.clipboard.readText().then((text) => text !== '')")
    copied = page.evaluate("navigator.clipboard.readText()")
    page.close()
    assert copied == "layerlab precision llama --budget 0.3 --out policy.toml"


@pytest.mark.full
def test_what_holds_is_folded_by_source_and_opens_where_it_is_asked(site, browser):
    page = browser.take(viewport=DESKTOP)
    page.goto((site / "what-holds.html").as_uri())
    folds = page.locator("article details")
    assert folds.count() == 5
    assert page.locator(f"{ROWS}:visible").count() == 0
    assert page.evaluate("document.documentElement.scrollHeight") < 3000
    folds.first.locator("summary").click()
    assert page.locator(f"{ROWS}:visible").count() > 5
    page.get_by_label("Source").select_option("spectral25")
    assert page.locator(f"{ROWS}:visible").count() > 5
    browser.give_back(page)


@pytest.mark.full
def test_claims_are_chosen_by_source_and_by_word_and_are_cards_on_a_phone(site, browser):
    page = browser.take(viewport=PHONE)
    page.goto((site / "results" / "index.html").as_uri())
    count = page.locator(ROWS).count()
    told = page.locator(".claims-filter output")
    assert count > 20 and told.inner_text() == f"{count} of {count} claims"
    for name, value, cell in (("Source", "residuals24", "source"), ("Verdict", "fails", "verdict")):
        page.get_by_label(name).select_option(value)
        shown = page.locator(f"{ROWS}:visible")
        cells = shown.locator(f'td[data-label="{cell}"]').all_inner_texts()
        assert 0 < len(cells) < count and all(value in one for one in cells)
        assert told.inner_text() == f"{len(cells)} of {count} claims"
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    card = shown.first
    assert card.evaluate("row => getComputedStyle(row).display") == "block"
    assert not page.locator("table[data-claims] thead").first.is_visible()
    page.set_viewport_size(DESKTOP)
    assert card.evaluate("row => getComputedStyle(row).display") == "table-row"
    browser.give_back(page)


@pytest.mark.full
def test_without_scripts_claims_are_a_plain_table(site, browser):
    page = browser.take(java_script_enabled=False)
    page.goto((site / "results" / "index.html").as_uri())
    table = page.locator("table").filter(has=page.locator("th", has_text="claim")).first
    assert table.locator("thead").is_visible() and table.locator("tbody tr").last.is_visible()
    assert page.locator(".claims-filter").count() == 0
    page.close()


def slugs(text: str) -> Iterator[str]:
    """Anchors that a host of repositories gives to the headings of a document."""
    seen: dict[str, int] = {}
    bare = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.+?)\s*$", bare, re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        seen[slug] = seen.get(slug, -1) + 1
        yield f"{slug}-{seen[slug]}" if seen[slug] else slug


def test_links_between_documents_lead_somewhere():
    wrong = []
    for path in WRITTEN:
        text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.M | re.S)
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
            name, _, anchor = target.partition("#")
            file = (path.parent / name).resolve() if name else path
            known = file.exists() and (not anchor or anchor in slugs(file.read_text("utf-8")))
            if not known:
                wrong.append(f"{path.relative_to(ROOT)}: {target}")
            # What is beside the documents is no part of the site.
            if DOCS in path.parents and DOCS not in file.parents:
                wrong.append(f"{path.relative_to(ROOT)} leaves docs: {target}")
    assert wrong == []


def test_no_page_is_left_of_a_variant_that_is_gone():
    from layerlab.variants.registry import home, variants

    own = {name for name in variants() if home(name).startswith("layerlab.")}
    assert {path.stem for path in (DOCS / "variants").glob("*.md")} == own

"""Pages of studies in Chinese: labels, claims, verdicts, axes; the numbers of the English ones."""

import re
import runpy
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from layerlab.records.parse import read_json
from layerlab.report.i18n.language import FOLDER, language
from layerlab.report.i18n.template import PLACEHOLDER, fill, own
from layerlab.report.pages import claims
from layerlab.report.pages.study import language_of, render, translate_pictures
from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.record import StudyResult
from layerlab.studies.engine.runner import study
from layerlab.studies.engine.suite import every
from tests.cli.several import several
from tests.report.support.window import PHONE
from tests.support.refused import refuses

TOOL = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "language.py"))
CHINESE = re.compile("[\u4e00-\u9fff]")
NUMBER = re.compile(r"\d(?:[\d,.]*\d)?")
HIDDEN = re.compile(r"<(script|style|code|table|title)\b.*?</\1>", re.DOTALL)
PROSE = re.compile(r"\b[a-z]{3,} [a-z]{3,}\b")
# What is typed, and names.
CITED = re.compile(r"layerlab (?:study|inspect)( --?[\w-]+| [\w=/.-]+)+|Kendall tau")
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "studies"
QUICK: dict[str, Any] = {"draws": 4, "threads": 1, "progress": False}


@pytest.fixture(scope="module")
def record() -> StudyResult:
    """A study with its first claim, which every catalogue has."""
    content = study("rounding-input", **QUICK).to_dict()
    content["verdicts"] = [{**content["verdicts"][0], "said": "0.93 (0.9 to 0.95)"}]
    return StudyResult({**content, "remarks": []})


def messages() -> list[tuple[str, str]]:
    """What studies say with numbers in it, and the Chinese for it."""
    stored = TOOL["stored"](FOLDER / "zh" / "LC_MESSAGES" / "layerlab.po")
    TOOL["update"](stored, TOOL["template"]())
    return [
        (one.id, one.string)
        for one in stored
        if "python-brace-format" in one.flags
        and isinstance(one.id, str)
        and isinstance(one.string, str)
        and any(place.startswith("studies/") for place, _ in one.locations)
        and one.string
        and own(one.id) > 20
    ]


def texts(page: str) -> list[str]:
    """What a reader reads in the body, with the labels of parts."""
    body = HIDDEN.sub("", page.partition("<body>")[2])
    found = [*re.findall(r">([^<]+)<", body), *re.findall(r'aria-label="([^"]+)"', body)]
    return [unescape(text).strip() for text in found if text.strip()]


def numbers(page: str) -> list[str]:
    return sorted(number for text in texts(page) for number in NUMBER.findall(text))


def same(text: str) -> bool:
    """Whether a text may be the same in both languages: a name, a number, a date."""
    return (not PROSE.search(text) and "-" in text) or " " not in text or not text[:1].isalpha()


@pytest.mark.full
def test_a_study_page_is_chinese_with_the_numbers_of_the_english_one(record):
    content = record.to_dict()
    english, chinese = render(content), render(content, "zh")
    assert "<b>layerlab</b><span> study rounding-input</span>" in chinese
    assert '<html lang="zh">' in chinese and not CHINESE.search("".join(texts(english)))
    said = texts(chinese)
    said.remove("study rounding-input")  # as it is typed
    assert [text for text in said if PROSE.search(text)] == []
    # Words of the English page that are the Chinese page's, too.
    kept = {text for text in texts(english) if text in said and not same(text)}
    assert {text for text in kept if not text.startswith(("layerlab", "norms"))} == set()
    dated = len(NUMBER.findall(content["created"]))
    assert abs(len(numbers(chinese)) - len(numbers(english))) <= dated
    assert [n for n in numbers(english) if n not in numbers(chinese)] == []


@pytest.mark.full
@pytest.mark.parametrize(
    "file", sorted(RESULTS.glob("*/study.json")), ids=lambda one: one.parent.name
)
def test_no_stored_study_is_said_in_two_languages_at_once(file):
    content = read_json(file)
    told = [content["title"], content["unit"], *content["remarks"]]
    told += [text for one in content["verdicts"] for text in one.values() if isinstance(text, str)]
    chinese = (CITED.sub("", language("zh").translate(text)) for text in told)
    assert [text for text in chinese if PROSE.search(text)] == []


@pytest.mark.full
def test_what_a_study_says_is_known_by_its_template():
    chinese, found, told = language("zh"), 0, messages()
    for message, said in told:
        names = dict.fromkeys(PLACEHOLDER.findall(message))
        parts = {name: f"{number + 2}.5" for number, name in enumerate(names)}
        found += chinese.translate(fill(message, parts)) == fill(said, parts)
    assert found > 0.9 * len(told) > 80


def test_the_page_of_all_claims_is_chinese(record):
    declared = studies()["rounding-input"]
    part = {"study": declared.name, "title": declared.title, "source": declared.source}
    content = [{**part, "verdicts": record.verdicts, "error": ""}]
    english, chinese = claims.render(content), claims.render(content, "zh")
    assert [text for text in texts(chinese) if PROSE.search(text)] == []
    assert numbers(chinese) == numbers(english)
    assert "哪些成立" in chinese and declared.claim not in chinese


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("pangu23, Figure 4; Own", "pangu23，图 4；自定"),
        ("RMS norm, bf16", "RMS 归一化，bf16"),
        ("post-norm: scores and softmax", "post-norm：分数和 softmax"),
        ("nobody knows what this says: at all", "nobody knows what this says: at all"),
        ("kim21, section 2; castin24; golub13", "kim21，第 2 节；castin24；golub13"),
        ("0.1 (0 to 1) for short texts and 2 for long texts", "短文本为 0.1（0 至 1）、长文本为 2"),
    ],
)
def test_a_list_is_said_part_by_part(english, chinese):
    assert language("zh").translate(english) == chinese
    assert language("en").translate(english) == english


def test_pictures_keep_their_numbers_and_english_pages_their_words(record):
    pictures = record.to_dict()["pictures"]
    assert translate_pictures(pictures, "en") == pictures
    chinese = translate_pictures(pictures, "zh")
    assert [one["data"][0]["y"] for one in chinese] == [one["data"][0]["y"] for one in pictures]
    assert chinese[0]["layout"]["xaxis"]["title"]["text"] == "token 的最大范数"


def test_the_page_of_a_finished_study_is_written_again_in_another_language(tmp_path):
    out = tmp_path / "out"
    study("rounding-input", out=out, lang="zh", **QUICK)
    stored = (out / "study.json").read_text("utf-8")
    assert language_of(out / "study.html") == "zh" and not CHINESE.search(stored)
    study("rounding-input", out=out, **QUICK)
    assert language_of(out / "study.html") == "en"
    assert (out / "study.json").read_text("utf-8") == stored


def test_the_page_of_a_finished_study_that_is_gone_is_written_again(tmp_path):
    out = tmp_path / "out"
    study("rounding-input", out=out, **QUICK)
    (out / "study.html").unlink()
    study("rounding-input", out=out, **QUICK)
    assert language_of(out / "study.html") == "en"


def test_an_unknown_language_is_refused_before_the_work_is_done(tmp_path):
    message = "there is no page in 'fr'; its languages are: en, zh"
    refuses(message, study, "rounding-input", out=tmp_path / "out", lang="fr", **QUICK)
    refuses(message, every, out=tmp_path / "all", lang="fr")
    (typed,) = several([["study", "--all", "--lang", "fr", "--out", "out"]], tmp_path)
    assert typed.code == 2 and message in typed.error
    assert not [*tmp_path.iterdir()]


def test_a_study_is_chinese_in_a_browser(record, window):
    page = window(render(record.to_dict(), "zh"), viewport=PHONE)
    page.locator(".plot .xtitle").first.wait_for(state="attached")
    assert page.locator(".plot .xtitle").first.text_content() == "token 的最大范数"
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]

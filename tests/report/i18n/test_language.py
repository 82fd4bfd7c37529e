"""The page in Chinese: nothing fixed is left in English, sentences keep their numbers."""

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab import UserError, load_report
from layerlab.numerics.profiles.profile import list_profiles, load_profile
from layerlab.report.i18n.language import FOLDER, language, languages
from layerlab.report.i18n.template import fill, pattern
from layerlab.report.pages.inspection import render
from layerlab.report.results.report import Report
from tests.report.findings.test_find import SICK, sick
from tests.report.support.sample import sample
from tests.report.support.window import PHONE

ROOT = Path(__file__).resolve().parents[3]
TOOL = runpy.run_path(str(ROOT / "docs" / "language.py"))
CODES = [code for code in languages() if code != "en"]
CHINESE = re.compile("[\u4e00-\u9fff]")
FIELD = re.compile(r"\{\w+\}|%\(\w+\)s")
NUMBER = re.compile(r"\d(?:[\d,.]*\d)?")
WAY = "type: python docs/language.py, and translate what is new in the .po"


def catalogue(code: str) -> Any:
    return TOOL["stored"](FOLDER / code / "LC_MESSAGES" / "layerlab.po")


def words(message: Any) -> tuple[str, str]:
    """The last form of a message, and of its translation."""
    last = [part if isinstance(part, str) else part[-1] for part in (message.id, message.string)]
    return last[0], last[1]


@pytest.mark.full
@pytest.mark.parametrize("code", CODES)
def test_no_message_is_without_a_sure_translation(code):
    stored = catalogue(code)
    TOOL["update"](stored, TOOL["template"]())
    places = [f"{one.locations[0][0]}: {one.id}" for one in TOOL["unsettled"](stored)]
    assert places == [] and len(stored) > 3000, WAY


@pytest.fixture
def bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Bring a Chinese catalogue in a folder of its own up to date with the messages given."""

    def run(*messages: str | tuple[str, str]) -> Path:
        now = TOOL["Catalog"]()
        for message in messages:
            now.add(message, locations=[("a.py", 0)])
        monkeypatch.setitem(TOOL["main"].__globals__, "FOLDER", tmp_path)
        monkeypatch.setitem(TOOL["main"].__globals__, "template", lambda: now)
        TOOL["main"](["zh"])
        return tmp_path / "zh" / "LC_MESSAGES" / "layerlab.po"

    return run


def translate(file: Path, message: str | tuple[str, str], translation: str) -> None:
    stored = TOOL["stored"](file)
    stored[message].string = translation if isinstance(message, str) else (translation,)
    file.write_bytes(TOOL["written"](stored))


def test_a_reworded_sentence_keeps_its_translation_until_somebody_looks(bring, capsys):
    """It is listed beside what is open, shown to nobody, and the same the next time."""
    before, reworded = "layer {n} is the largest of all", "layer {n} is by far the largest of all"
    new = "Unheard of until now."
    translate(bring(before), before, "第 {n} 层最大")
    capsys.readouterr()
    file = bring(reworded, new)
    told, *rest = capsys.readouterr().out.splitlines()
    assert told.endswith("2 messages, 2 without a sure translation")
    assert rest == [f"  a.py: {reworded!r} (was: {before!r})", f"  a.py: {new!r}"]
    after = file.read_bytes()
    assert TOOL["stored"](file)[reworded].string == "第 {n} 层最大" and b"#, fuzzy" in after
    assert "最大".encode() not in file.with_suffix(".mo").read_bytes()
    assert bring(reworded, new).read_bytes() == after


def test_a_sentence_takes_over_no_translation_in_several_forms(bring):
    forms = ("a layer is the largest one", "{n} layers are the largest ones")
    translate(bring(forms), forms, "最大")
    assert not TOOL["stored"](bring(str(forms)))[str(forms)].string


def test_a_translation_without_one_of_its_forms_is_unsettled():
    german = TOOL["Catalog"](locale="de")
    german.add(("a layer", "{n} layers"), ("eine Schicht", ""))
    german.add(("a head", "{n} heads"), ("ein Kopf", "{n} Köpfe"))
    assert [one.id[0] for one in TOOL["unsettled"](german)] == ["a layer"]


@pytest.mark.parametrize("code", CODES)
def test_the_compiled_catalogue_is_that_of_the_text(code):
    held = (FOLDER / code / "LC_MESSAGES" / "layerlab.mo").read_bytes()
    # Another Babel writes its own number.
    both = [re.sub(rb"Babel [\d.]+", b"", one) for one in (held, TOOL["compiled"](catalogue(code)))]
    assert both[0] == both[1], "type: python docs/language.py"


@pytest.mark.parametrize("code", CODES)
def test_a_translation_fills_in_what_its_original_does(code):
    pairs = [words(message) for message in catalogue(code) if message.id and any(message.string)]
    assert len(pairs) > 600
    wrong = [said for said, own in pairs if set(FIELD.findall(said)) != set(FIELD.findall(own))]
    assert wrong == []


def test_a_template_is_taken_from_every_kind_of_text():
    source = (
        'def f(n):\n    """Two words."""\n    return f"layer {n.layer} of {len(n)} {\'a\'} more"'
    )
    assert TOOL["Phrases"].of(source, words=True) == ["layer {layer} of {n} {value} more"]
    assert TOOL["Phrases"].of('x = "one_word"\nraise UserError("two words")', words=False) == []
    coded = r'x = r"[\d.]+(?: [kMB])? of them all"; log("%s of them all", 3)'
    assert TOOL["Phrases"].of(coded, words=True) == []


@pytest.mark.few(10)
@pytest.mark.parametrize("name", SICK)
def test_every_finding_is_said_in_chinese_with_its_numbers(name):
    finding, chinese = sick(name), language("zh")
    said, advice = chinese.translate(finding.sentence), chinese.translate(finding.advice)
    assert CHINESE.search(said) and CHINESE.search(advice)
    assert sorted(NUMBER.findall(said)) == sorted(NUMBER.findall(finding.sentence))
    assert not re.search(r"[a-z]{3,} [a-z]{3,}", said.replace("spectrum norm", ""))


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("Layer 3 head 2: largest attention score 131, above 100",
         "第 3 层第 2 头：最大注意力分数 131，高于 100"),
        ("Layer 3 head 2: largest attention score 131, above 100 (range of a row 60.2), "
         "and 11 more heads in layers 2-3, 5",
         "第 3 层第 2 头：最大注意力分数 131，高于 100（一行的跨度 60.2），"
         "层 2-3, 5 中另有 11 个头"),
        ("residual stream with attn:cast (attention weights or output, narrowed)",
         "残差流与 attn:cast（收窄后的注意力权重或输出）"),
        # As an older report says it.
        ("Taken out alone, 1 of 32 heads change the loss by less than 0.001 nats each",
         "单独去掉时，32 个头中有 1 个，各自使损失变化不到 0.001 奈特"),
        ("wte holds nothing that anyone knows.", "wte holds nothing that anyone knows."),
        ("checkpoint step-00000150 cannot be used: 2 of the 30 events in events.jsonl that it "
         "relies on are left; the one before it is used",
         "检查点 step-00000150 无法使用：它所依赖的 events.jsonl 中的 30 个事件只剩 2 个；"
         "使用它之前的那一个"),
        ("the running bound says nothing where it is 1 or more: bf16 infinite from layer 0 on; "
         "fp16 from layer 0 on, infinite from layer 1 on",
         "累计界限在大于等于 1 处说明不了什么：bf16 从第 0 层起为无穷大；"
         "fp16 从第 0 层起，从第 1 层起为无穷大"),
        ("mean of 34 subjects, weighted by their questions", "34 个科目的均值（按题数加权）"),
        ("mean of 1 of 2 parts; not run: ax-b", "2 个部分中 1 个的均值；未运行：ax-b"),
        ("C-Eval: law_val.csv, line 23: the option 'x' stands there twice; it is scored as "
         "published; so are 3 more",
         "C-Eval：law_val.csv 第 23 行：选项 'x' 出现两次；按公布的计分；另有 3 处如此"),
        ("mean of 20 tasks", "20 个任务的均值"),
        ("mean of 3 of 20 tasks; not run: a, b", "20 个任务中 3 个的均值；未运行：a, b"),
        ("0.3 of 5 (least 0, 12 shortened)", "5 个示例中平均 0.3 个（最少 0，12 题减少示例）"),
        ("3.2 of 5 (least 2, 7 shortened, 1 too long)",
         "5 个示例中平均 3.2 个（最少 2，7 题减少示例，1 题过长）"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_sentence_is_known_by_its_template_or_stands(english, chinese):
    assert language("zh").translate(english) == chinese
    assert language("en").translate(english) == english


@given(st.text(max_size=80))
def test_no_text_breaks_a_language(text):
    chinese = language("zh")
    assert isinstance(chinese.translate(text), str)
    assert isinstance(chinese.remark(f"m: {text}", [{"name": "m"}]), str)
    assert chinese.label(text) or not text


@given(st.integers(0, 10**6), st.floats(0, 1e6).map(lambda number: f"{number:.3g}"))
def test_what_was_filled_in_is_found_again(layer, value):
    message = "{place}: nothing {value}{more}"
    parts = {"place": f"layer {layer}", "value": value, "more": ", and 2 more"}
    found = pattern(message).fullmatch(fill(message, parts))
    assert found and found.groupdict() == parts


def test_what_rows_have_in_common_is_translated_part_by_part():
    assert language("zh").names("llama, bf16, by component") == "llama, bf16, 按组件"


def test_what_is_typed_is_no_word_of_the_page():
    chinese = language("zh")
    assert chinese.translate("head") == "头" and chinese.translate("`head`") == "`head`"
    advice = (
        "set `context` and `head` in b as in a: RMS 0.064 nats becomes 0.017, as a run shows; "
        "this makes 74% of the squared difference"
    )
    said = chinese.translate(advice)
    assert "`context`、`head`" in said and "上下文" not in said and "squared" not in said


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("base is better than head (p = 0.02)", "base 比 head (p = 0.02) 更好"),
        (
            "no verdict on base against head: one question tells nothing of chance",
            "base 对 head 没有结论：单独一道题说明不了偶然性",
        ),
        ("base: mean of 20 tasks", "base：20 个任务的均值"),
        ("base 0.5; head 0.3", "base 0.5；head 0.3"),
    ],
)
def test_names_that_a_user_gave_stand_in_every_sentence(english, chinese):
    assert language("zh", frozenset({"base", "head"})).translate(english) == chinese
    assert language("zh").translate(english) != chinese


@pytest.mark.parametrize("name", list_profiles())
def test_a_profile_is_described_in_every_language(name):
    profile = load_profile(name)
    said = language("zh").translate(f"profile a is {name}: {profile.summary}")
    assert said.startswith(f"配置 a 是 {name}：") and profile.description not in said


@pytest.mark.full
def test_an_unknown_language_is_refused_with_those_that_there_are(tmp_path):
    with pytest.raises(UserError, match="there is no page in 'zg'; its languages are: en, zh"):
        Report(sample(["a"])).save(tmp_path / "out", lang="zg")
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_the_data_stay_english(tmp_path):
    report = Report(sample(["a"]))
    report.save(tmp_path / "out", lang="zh")
    stored = (tmp_path / "out" / "report.json").read_text("utf-8")
    assert not CHINESE.search(json.dumps(json.loads(stored), ensure_ascii=False))
    assert load_report(tmp_path / "out") == report
    assert '<html lang="zh">' in (tmp_path / "out" / "report.html").read_text("utf-8")


@pytest.mark.full
def test_an_english_page_carries_no_other_words():
    assert '<html lang="en">' in render(sample(["a"]))
    assert not CHINESE.search(render(sample(["a"])).partition("plotly.js")[0])


@pytest.mark.full
def test_the_page_is_chinese_in_a_browser(window):
    report = sample(layers=3, sequences=1)
    report["findings"][0]["sentence"] = "Layer 1 head 2: largest attention score 131, above 100"
    page = window(render(report, "zh"))
    assert page.locator("html").get_attribute("lang") == "zh"
    said = page.locator(".sentence").first.inner_text()
    assert said.removesuffix(" #") == "第 1 层第 2 头：最大注意力分数 131，高于 100"
    section = page.locator("section#spectrum")
    section.scroll_into_view_if_needed()
    page.wait_for_selector("section#spectrum[data-drawn]")
    section.locator(".plot .xtitle").wait_for(state="attached")
    assert section.locator(".plot .xtitle").text_content() == "层"
    assert section.locator(".plot .ytitle").text_content() == "范数 (norm)"
    section.get_by_text("数值表").click()
    assert section.locator("table.sortable th").nth(1).inner_text() == "层"
    section.locator("table.sortable th button").nth(2).click()
    assert page.evaluate("document.activeElement.textContent") == "范数 (norm)"
    assert "读数成立" in section.locator(".verdicts").inner_text()
    page.get_by_role("button", name="显示注意力图").click()
    dialog = page.get_by_role("dialog")
    dialog.locator(".heatmaplayer image").wait_for(state="attached")
    assert dialog.locator("h2").inner_text() == "pre-norm：第 1 层，第 2 头"


@pytest.mark.full
def test_a_chinese_page_fits_a_phone(window):
    page = window(render(sample(layers=3, sequences=1), "zh"), viewport=PHONE)
    for name in ("spectrum", "gain"):
        page.locator(f"section#{name}").scroll_into_view_if_needed()
        page.wait_for_selector(f"section#{name}[data-drawn]")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize(
    ("layers", "chinese"), [("every layer", "每一层"), ("layers 0, 2", "第 0, 2 层")]
)
def test_a_remark_on_layers_is_said_in_chinese(layers, chinese):
    remark = f"bound: not applicable to ffn of {layers}, because its block was not found"
    said = language("zh").remark(f"m: {remark}", [{"name": "m"}])
    assert said.startswith(f"m：界限：不适用于{chinese}的 ") and "block" not in said

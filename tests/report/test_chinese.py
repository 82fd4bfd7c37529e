"""Pages of training, evaluation and adaptation in Chinese: no label is left in English."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from typing import Any

import pytest

from layerlab.api import evaluate, train
from layerlab.recipes.training_sections import TrainSection
from layerlab.report.i18n.language import FOLDER, label, language
from layerlab.report.pages import adaptation, comparison, evaluation, vocabulary
from layerlab.training.step.nonfinite import explain_origin
from tests.cli.several import several
from tests.report.pages.test_evaluation import scored
from tests.report.support.passed import passed
from tests.report.support.race import race, single, write_runs
from tests.report.support.window import DESKTOP, PHONE
from tests.support.refused import refuses

CHINESE = re.compile("[\u4e00-\u9fff]")
WORD = re.compile(r"[^\W\d_]{2,}", re.ASCII)
NUMBER = re.compile(r"\d(?:[\d,.]*\d)?")
# Names and symbols that Chinese texts keep.
KEPT = {"layerlab", "token", "FLOPs", "Holm", "Wilson", "JavaScript", "UTC", "MB", "compare"}
KEPT |= {"train", "adapt", "evaluate", "vocabulary"}
REFUSED = "there is no page in 'fr'; its languages are: en, zh"
EVIDENCE = (
    "95 % interval -0.0432 to -0.0211, p = 0.0012 after Holm's correction for 7 tests, 3 seeds"
)


class Texts(HTMLParser):
    """What a reader reads or is read aloud: no code, no script, no recipe."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside += tag in {"script", "style", "code", "pre"}
        self.found += [str(value) for name, value in attrs if name in {"aria-label", "title"}]

    def handle_endtag(self, tag: str) -> None:
        self.inside -= tag in {"script", "style", "code", "pre"}

    def handle_data(self, data: str) -> None:
        if data.strip() and not self.inside:
            self.found.append(data.strip())


def texts(page: str) -> list[str]:
    reader = Texts()
    reader.feed(page.rpartition("<script>")[0] or page)
    return reader.found


def strings(content: Any) -> Iterator[str]:
    """Names and values of a content: whatever of them stands on a page is data."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield from (str(name), *strings(value))
    elif isinstance(content, list | tuple):
        for value in content:
            yield from strings(value)
    else:
        yield str(content)


def raced() -> dict[str, Any]:
    """A comparison that has everything a page can have."""
    content = race(("llama", "history-1", "history-2"), rates=(0.001, 0.003), updates=100)
    lost = explain_origin(None, float("nan"), 5, TrainSection())
    content["runs"][0]["finished"], content["runs"][1]["diverged"] = False, lost
    head = {"arm": "llama", "seed": 1, "update": 9}
    content["alarms"] = [{**head, "text": "the loss is nan", "layer": 1, "value": 131.0}]
    content["notes"] = [{**head, "text": "resumed after update 3"}]
    content["claims"] = [{"verdict": "fails", "says": "So it is.", "source": "x", "said": ""}]
    content["samples"] = [{**head, "prompt": "The", "text": "jury"}]
    content["remarks"] = ["declared to differ: data.order is 1 in a and 2 in b"]
    content["recipe"]["compare"]["allowed_differences"] = ["train.batch_size"]
    for row in content["rows"]:
        row["said"] = f"{row['arm']} is better than llama by 0.0320 nats ({EVIDENCE})."
    return content


def proved() -> dict[str, Any]:
    """A changed vocabulary with all that its page can have."""
    (found,) = passed()["vocabulary"]
    sizes = {"tokens_per_byte": 0.2, "bytes_per_token": 4.0}
    both = {side: {**found["texts"][0][side], **sizes} for side in ("base", "new")}
    return {
        **found,
        "asked": {"tokenizer": "words", "size": "+20", "corpus": ["x"], "terms": None},
        "coverage": 0.93,
        "layerlab": "0.1.0",
        "unreachable": ["Ġcourt"],
        "texts": [{**found["texts"][0], **both}],
        "terms": {"terms": 3, "base": 9, "new": 4, "whole_base": 1, "whole": 2},
        "published": {
            "about": "Theirs.",
            "rows": [{"tokenizer": "t", "entries": 9, "rate": 0.5, "published": True}],
            "left_out": {},
        },
    }


PAGES: dict[str, tuple[Callable[..., str], Callable[[], dict[str, Any]]]] = {
    "compare": (comparison.render, raced),
    "train": (partial(comparison.render, single=True), lambda: single(updates=100)),
    "evaluate": (evaluation.render, scored),
    "adapt": (adaptation.render, passed),
    "vocabulary": (vocabulary.render, proved),
}


@pytest.mark.full
@pytest.mark.parametrize("name", PAGES)
def test_no_fixed_label_is_english_and_every_number_is_there(name):
    """Labels are what is on the page and not in the content."""
    render, made = PAGES[name]
    content = made()
    page, known = texts(render(content, "zh")), KEPT | set(WORD.findall(" ".join(strings(content))))
    labels = [text for text in page if not set(WORD.findall(text)) <= known]
    assert labels == []
    assert sum(bool(CHINESE.search(text)) for text in page) > 40
    english = texts(render(content))
    assert not CHINESE.search("".join(english).replace("是非", ""))
    numbers = [sorted(NUMBER.findall(" ".join(one))) for one in (page, english)]
    month = ["11"] if "20 November 2026" in " ".join(english) else []
    assert numbers[0] == sorted(numbers[1] + month)


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        (f"history-1 is better than llama by 0.0320 nats ({EVIDENCE}); 3 of 5 planned seeds: this "
         "verdict is not final.",
         "history-1 比 llama 更好，相差 0.0320 奈特（95 % 区间 -0.0432 至 -0.0211，按 7 项检验作 "
         "Holm 校正后 p = 0.0012，3 个种子）；计划的 5 个种子只完成 3 个：此判定不是最终的。"),
        ("a is not distinguishable from b at this budget: -0.0320 nats (95 % interval -0.0432 to "
         "+0.0211, p = 0.1, 3 seeds); 3 seeds find an effect of 0.0500 to 0.2000 with a "
         "probability of 80 % (a range, as sigma is an estimate).",
         "在此预算下 a 与 b 无法区分：-0.0320 奈特（95 % 区间 -0.0432 至 +0.0211，p = 0.1，"
         "3 个种子）；3 个种子以 80 % 的概率能发现 0.0500 至 0.2000 的效应（σ "
         "只是估计，故为范围）。"),
        ((
            "a is worse than b: a diverged at seeds 1, 2 (loss is nan at update 5; the first "
            "module whose loss is not finite is lm_head; lower train.learning_rate (now 0.1)); "
            "over the 2 seeds left the difference is +0.1 nats."
        ),
         "a 比 b 更差：a 在 种子 1、2 上发散（更新 5 时损失为 nan；最先出现非有限损失的模块是 "
         "lm_head；请降低 train.learning_rate（现为 0.1））；在其余 2 个种子上差值为 +0.1 奈特。"),
        ("no verdict on a: no seed has finished for it and b both.",
         "对 a 无判定：它与 b 没有共同完成的种子。"),
        ("the largest score of attention layer 1, head 2 is 131, above 100 (and 2 more places): "
         "put a norm on query and key, clip their weights or lower the learning rate; in bfloat16, "
         "rounding alone moves its attention",
         "注意力第 1 层第 2 头的最大分数为 131，高于 100（另有 2 处）：对查询和键加归一化、"
         "裁剪其权重或降低学习率；在 bfloat16 中，仅舍入就会改变其注意力"),
        ("holds, 3 of 3 pairs are as said; the least sure: a against b: +0.01 nats (95 % interval "
         "+0.0123 to +0.0400, p = 0.012 of the claim, 3 seeds).",
         "成立，3 对中有 3 对与所说一致；最不确定的一对：a 对比 b：+0.01 奈特（95 % 区间 "
         "+0.0123 至 +0.0400，该主张的 p = 0.012，3 个种子）。"),
        ("a is worse than b by 0.0320 nats (95 % interval +0.0123 to +0.0400, p = 0.012, 3 seeds); "
         "the two differ in norm, ffn, stack at once, so this is a verdict on all of that "
         "together.",
         "a 比 b 更差，相差 0.0320 奈特（95 % 区间 +0.0123 至 +0.0400，p = 0.012，3 个种子）；两者"
         "同时在 norm、前馈网络、stack 上不同，因此这是对这些改动合在一起的判定。"),
        ("more than one part differs from the baseline's, and no verdict can say which of them "
         "counts: b-2 (norm, ffn, stack)",
         "与基线不止一处不同，任何判定都说不出起作用的是哪一处：b-2（norm、前馈网络、stack）"),
        ("Nobody knows it; nor this, at all.", "Nobody knows it; nor this, at all."),
        ("", ""),
        (".", "."),
        (", ", ", "),
    ],
)  # fmt: skip
def test_a_verdict_is_said_clause_by_clause_with_its_numbers(english, chinese):
    assert language("zh").translate(english) == chinese
    assert language("en").translate(english) == english


def test_only_words_of_the_page_are_translated():
    word = language("zh").word
    assert word(label("before")) == "之前" and word("before") == "before" and word(3) == 3
    assert word(label("pretrain, seed 1 (replay)")) == "继续预训练，种子 1 (replay)"


@pytest.mark.full
@pytest.mark.full
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_line_ends_between_a_number_and_its_sign_but_code_is_as_typed(lang):
    content = race(("llama", "history-1"), updates=40)
    content["remarks"] = ["declared to differ: a.b is ± 3 in llama and ≈ 2 in history-1"]
    content["recipe"]["about"] = "of 5 % and ± 3"
    page = comparison.render(content, lang)
    sentences = " ".join(texts(page))
    assert not re.search(r"\d %|[≈±] \d", sentences)
    for tied in ("95\N{NO-BREAK SPACE}%", "±\N{NO-BREAK SPACE}3", "≈\N{NO-BREAK SPACE}2"):
        assert tied in sentences
    assert "of 5 % and ± 3" in page


def test_tokens_and_arms_have_one_word_each():
    catalogue = (FOLDER / "zh" / "LC_MESSAGES" / "layerlab.po").read_text("utf-8")
    assert [word for word in ("词元", "臂") if word in catalogue] == []


def test_what_is_beside_the_page_stays_english(tmp_path):
    content = race(("llama", "history-1"), seeds=(1, 2), updates=40)
    (run, *_) = write_runs(content, tmp_path)
    pages = [comparison.save_comparison(content, tmp_path, "zh"), comparison.save_run(run, "zh")]
    pages.append(adaptation.save_adaptation(passed(), tmp_path / "adapted", "zh"))
    assert all('<html lang="zh">' in page.read_text("utf-8") for page in pages)
    others = [file for file in tmp_path.rglob("*.*") if file.suffix in {".json", ".csv", ".svg"}]
    assert len(others) > 20
    assert not any(CHINESE.search(file.read_text("utf-8")) for file in others)
    written = (tmp_path / "comparison.json").read_text("utf-8")
    again = comparison.render(json.loads(written), "zh")
    assert "与基线的差值" in again and "Difference to" not in "".join(texts(again))


def test_an_unknown_language_is_refused_before_the_work_is_done(tmp_path):
    words = ("--tokenizer", "t", "--corpus", "c", "--size", "+9", "--out", "v")
    asked = [
        *(("train", "none.toml"), ("compare", "none.toml"), ("adapt", "none.toml")),
        *(("evaluate", "none", "--suite", "none"), ("adapt", "vocabulary", *words)),
    ]
    for said in several([(*one, "--lang", "fr") for one in asked], tmp_path):
        assert (said.code, said.error, said.out) == (2, f"layerlab: {REFUSED}\n", "")
    assert list(tmp_path.iterdir()) == []
    for work in (train.train, train.compare, evaluate.evaluate):
        refuses("there is no page in 'fr'", work, {}, lang="fr")


@pytest.mark.full
def test_curves_are_chinese_in_a_browser(window):
    page = window(comparison.render(raced(), "zh"), viewport=DESKTOP)
    for name, axes in (("curves", ("更新次数", "留出文本，每 token 奈特数")), ("monitor", ("层",))):
        section = page.locator(f"section#{name}")
        section.scroll_into_view_if_needed()
        page.wait_for_selector(f"section#{name}[data-drawn]")
        section.locator(".plot .xtitle").first.wait_for(state="attached")
        assert section.locator(".plot .xtitle").last.text_content() == axes[0]
        if len(axes) > 1:
            assert section.locator(".plot .ytitle").first.text_content() == axes[1]
    assert "（基线）" in page.locator("#curves [data-part=key]").inner_text()
    assert page.locator("[data-part=moment]").inner_text().startswith("更新 ")


@pytest.mark.full
def test_a_chinese_comparison_fits_a_phone(window):
    page = window(comparison.render(raced(), "zh"), viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    heads = page.locator("#numbers thead th").filter(has_text="种子数")
    height = heads.first.locator("button").evaluate("one => one.offsetHeight")
    assert height < 30

"""The page as text: safe, small, whole."""

import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab.plugins import list_measures
from layerlab.report.pages.inspection import group_columns, rank_findings, render
from layerlab.report.pages.shell import embed_json, number, option, plotly, policy
from layerlab.report.views import text
from layerlab.report.views.inspection.frames import compact
from tests.report.support.sample import HOSTILE, WORDS, sample

LIMIT = 1_500_000


class Tags(HTMLParser):
    """Every tag of a page, its attributes, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = False
        self.feed(page)
        self.close()

    @property
    def running(self) -> list[str]:
        """Every script that runs, and what unpacks to another one."""
        packed = any(attributes.get("id") == "drawing" for _, attributes in self.tags)
        kinds = [attributes.get("type") for tag, attributes in self.tags if tag == "script"]
        own = [text for text, kind in zip(self.scripts, kinds, strict=True) if kind is None]
        return [*own, *([plotly()] if packed else [])]

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data


def test_json_in_a_script_cannot_end_it_and_reads_back_the_same():
    value = {"a": HOSTILE, "b": "<!--<script>", "c": "\u2028\u2029&amp;", "d": "汉字"}
    written = embed_json(value)
    assert not set(written) & set("<>&\u2028\u2029")
    assert json.loads(written) == value


def test_json_that_is_not_strict_is_refused():
    with pytest.raises(ValueError, match="JSON compliant"):
        embed_json([float("nan")])


@given(st.text())
def test_whatever_a_token_holds_it_is_visible_short_and_writable(token):
    shown = text.token(token)
    assert shown.isprintable()
    assert 0 < len(shown) <= 24
    assert text.prose(token).isprintable()
    shown.encode()


def compare_tags(draw: Callable[[str], str]) -> Tags:
    """The page of a hostile text, whose tags and attributes are those of a calm one."""
    calm, wild = Tags(draw("calm")), Tags(draw(f"{HOSTILE}\" onload='x' {{{{7*7}}}}"))
    assert [tag for tag, _ in wild.tags] == [tag for tag, _ in calm.tags]
    assert [sorted(a) for _, a in wild.tags] == [sorted(a) for _, a in calm.tags]
    return wild


def check_addresses(page: Tags) -> None:
    """No tag names another file or an address."""
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "data", "srcset", "poster"):
            target = attributes.get(name)
            assert target is None or target.startswith(("#", "data:")), (tag, target)


@pytest.mark.full
def test_hostile_text_adds_no_tag_and_no_attribute_to_the_page():
    wild = compare_tags(lambda words: render(hostile(words)))
    assert "onerror" not in {name for _, attributes in wild.tags for name in attributes}


def hostile(words: str):
    """A report whose every free text is `words`."""
    report = sample(["a", words])
    for finding in report["findings"]:
        finding |= {"sentence": words, "advice": words, "source": words}
    report["notes"] = [{"title": words, "text": words, "source": words}]
    report["text"]["source"] = report["text"]["sequences"][0]["excerpt"] = words
    report["models"][0] |= {"card": words, "source": words, "revision": words}
    for measure in report["measures"]:
        measure |= {"about": words, "notes": [words], "equation": words, "unit": words}
        measure["not_applicable"] = [{"model": "a", "reason": words}]
    report["options"]["x"] = {words: {words: words}}
    return report


@pytest.mark.full
def test_the_page_names_no_other_file_and_no_address():
    page = Tags(render(sample()))
    check_addresses(page)
    assert {tag for tag, _ in page.tags}.isdisjoint({"iframe", "object", "embed", "base", "form"})


def test_translated_words_stand_in_the_order_of_the_script():
    """So the same content gives the same bytes, whatever the seed of Python's hashes."""
    page = render(sample(["a"]), "zh")
    words = list(json.loads(re.search(r'id="data">(.*?)</script>', page)[1])["words"])
    spoken = re.findall(r'\b(?:say|parts)\(\s*("(?:[^"\\]|\\.)*")', Tags(page).running[0])
    said = [one for one in dict.fromkeys(map(json.loads, spoken)) if one in words]
    assert words[: len(said)] == said and len(said) > 9
    assert words[len(said) :] == sorted(words[len(said) :])


@pytest.mark.full
def test_every_script_that_runs_is_allowed_by_its_hash_and_nothing_else_is():
    page = Tags(render(sample()))
    given_policy = next(a["content"] for _, a in page.tags if "http-equiv" in a)
    assert given_policy == policy(page.running) and len(page.running) == 2
    assert "unsafe-inline" not in re.search(r"script-src[^;]*", given_policy)[0]
    assert "unsafe-eval" not in given_policy


def test_the_library_that_draws_is_the_published_one():
    whole = hashlib.sha256(plotly().encode()).hexdigest()
    assert whole == "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
    assert "plotly.js (cartesian - minified) v4.1.1" in plotly()[:100]


@pytest.mark.full
def test_a_large_model_stays_below_the_limit():
    report = sample(["large"], layers=36, heads=20, tokens=256)
    page = render(report)
    assert len(page.encode()) <= LIMIT


@pytest.mark.full
def test_a_large_model_with_as_many_pictures_as_findings_stays_below_the_limit():
    report = sample(["large"], layers=36, heads=20, tokens=64)
    (first,) = [f for f in report["findings"] if f["detail"] == "head"]
    for index in range(200):
        report["details"][f"h{index}"] = report["details"]["head"]
        report["findings"].append({**first, "id": f"x{index}", "detail": f"h{index}"})
    page = render(report)
    assert len(page.encode()) <= LIMIT
    assert "its picture is in report.json" in page


@pytest.mark.full
def test_findings_are_listed_worst_first_with_number_threshold_and_source():
    report = sample()
    report["findings"].reverse()
    order = [f["severity"] for f in rank_findings(report, compact(report))]
    assert order == ["error", "warning", "warning", "info"]
    page = render(report)
    assert '<b>131.2</b>, threshold 100 (<a href="#source-kimi25">kimi25</a>)' in page
    assert page.index("131.2") < page.index("912.4") < page.index("0.33")


@pytest.mark.full
def test_findings_and_their_pictures_belong_to_their_model_however_long_its_name_is():
    names = [f"/data/{'long/' * 20}{run}/checkpoint-5" for run in ("one", "two")]
    report = sample(names)
    view = compact(report)
    found = rank_findings(report, view)
    assert {finding["index"] for finding in found} == {0, 1}
    assert all(names[finding["index"]] == finding["model"] for finding in found)
    shown = view["details"]
    assert shown
    assert all(names[shown[key]["model"]] == report["details"][key]["model"] for key in shown)
    head = render(report).partition('<section id="findings"')[0]
    assert all(f"<i>{model['name']}</i>" in head for model in view["models"])


@pytest.mark.full
def test_every_measure_says_what_it_is_and_how_it_is_defined():
    report = sample()
    page = render(report)
    for measure in report["measures"]:
        assert f'id="{measure["name"]}"' in page
        assert f'id="docs-{measure["name"]}"' in page
        assert f'href="#docs-{measure["name"]}"' in page
        for column in measure["columns"]:
            assert f'<dt data-column="{column}">{column}</dt>' in page


@pytest.mark.full
def test_no_path_of_another_file_stands_on_the_page_as_if_it_could_be_opened():
    assert "docs/measures" not in render(sample())


@pytest.mark.full
def test_what_all_cards_say_is_said_once_and_backticks_become_code():
    report = sample(["a", "b"])
    report["models"][0]["card"] = "It is `GPT2LMHeadModel`. Trained in lockstep on <one> text."
    report["models"][1]["card"] = "It is `LlamaForCausalLM`. Trained in lockstep on <one> text."
    page = render(report)
    assert page.count("Trained in lockstep on &lt;one&gt; text.") == 1
    assert page.count("It is <code>GPT2LMHeadModel</code>.") == 1
    assert "`" not in page[page.index("<body>") : page.index('id="data"')]


@pytest.mark.full
def test_a_single_card_and_no_card_at_all_are_no_row():
    one, none = sample(["a"]), sample(["a", "b"])
    for model in none["models"]:
        model["card"] = None
    assert render(one).count("Trained by this project") == 1
    assert "card" not in re.findall(r'<th scope="row">(\w+)', render(none).lower())


def read_by(tokens):
    report = sample(["a", "b"])
    for model, counts in zip(report["models"], tokens, strict=True):
        model["tokens"] = counts
    return render(report)


@pytest.mark.full
def test_models_that_read_different_lengths_are_said_to():
    page = read_by([[256] * 4, [256, 256, 200, 31]])
    assert "<td>4 × 256</td><td>2 × 256, 1 × 200, 1 × 31</td>" in page
    assert "743 to 1,024 tokens of" in page
    assert "attention norms follow length" in page


@pytest.mark.full
def test_models_that_read_the_same_get_no_remark():
    page = read_by([[256] * 4, [256] * 4])
    assert page.count("<td>4 × 256</td>") == 2
    assert " 1,024 tokens of" in page
    assert "attention norms follow length" not in page


@pytest.mark.full
def test_the_same_total_in_other_lengths_is_a_difference():
    assert "attention norms follow length" in read_by([[100, 300], [200, 200]])


@pytest.mark.full
def test_the_page_says_which_part_of_a_text_was_read_and_what_is_hashed():
    report = sample(["a"], sequences=4, tokens=512)
    report["text"] |= {"source": "input.txt", "hash": "sha256:ab", "hashed": "the whole text"}
    report["options"]["samples"] = 4
    page = " ".join(render(report).split())
    assert "on the first 2,048 tokens of input.txt, in 4 samples of 512 tokens." in page
    assert "input.txt; hash of the whole text: sha256:ab" in page
    chinese = " ".join(render(report, "zh").split())
    assert "input.txt”的前 2,048 个 token 上" in chinese and "每段 512 个 token" in chinese
    assert "全文的散列值：" in chinese
    report["text"]["sequences"][3]["tokens"] = 31
    assert "4 sequences, 1,567 tokens of input.txt." in " ".join(render(report).split())


def test_the_source_of_a_threshold_stands_in_brackets_of_the_language():
    report = sample(["a"])
    report["findings"] = [{**report["findings"][0], "threshold": 0.25, "source": "Own limit"}]
    assert "threshold 0.25 (Own limit)</span>" in render(report)
    assert "阈值 0.25（自定阈值）</span>" in render(report, "zh")


@pytest.mark.full
def test_a_report_without_counts_per_model_names_those_of_the_text():
    page = render(sample(["a", "b"]))
    assert " 160 tokens of" in page
    assert "Tokens read" not in page


@pytest.mark.full
def test_what_is_not_applicable_says_why():
    report = sample(["a", "b"])
    report["measures"][3]["not_applicable"] = [{"model": "b", "reason": "its rows do not sum to 1"}]
    assert "not applicable, because its rows do not sum to 1" in render(report)


@pytest.mark.full
def test_the_same_report_gives_the_same_page():
    assert render(sample()) == render(sample())


@pytest.mark.parametrize("index", range(len(WORDS)))
def test_a_token_is_one_visible_word(index):
    assert not re.search(r"\s", text.token(WORDS[index]))


def test_numbers_are_short_and_absent_ones_are_a_dash():
    assert number(0.123456) == "0.1235"
    assert number("Infinity") == "∞"
    assert option({"a": {"b": 1}, "c": {}}) == "a (b=1), c"
    assert option(["x", 1]) == "x, 1"


def said_of_losses(report):
    """The lines about losses at the head of a page."""
    head = re.search(r'<dl class="facts">(.*?)</dl>', render(report), re.DOTALL)
    lines = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", head[1], re.DOTALL) if head else []
    return [re.sub(r"<[^>]+>", "", " = ".join(line)).strip() for line in lines]


@pytest.mark.full
def test_the_loss_and_its_perplexity_stand_at_the_head_with_the_name_of_the_text():
    report = sample(["a"])
    report["text"]["source"] = "/somewhere/else/shakespeare.txt"
    report["models"][0]["loss_nats"] = 4.0708
    (line,) = said_of_losses(report)
    assert line == "Loss on shakespeare.txt = 4.071 nats per token perplexity 58.6"


@pytest.mark.full
def test_each_model_that_has_a_loss_is_named_with_it():
    report = sample(["a", "b", "c"])
    report["models"][1]["loss_nats"] = None
    report["models"][2]["loss_nats"] = 1e6
    assert said_of_losses(report) == [
        "a · Loss on built-in sample = 1.62 nats per token perplexity 5.053",
        "c · Loss on built-in sample = 1e+06 nats per token perplexity inf",
    ]


@pytest.mark.full
def test_without_a_text_there_is_no_loss():
    report = sample(["a"])
    report["models"][0]["loss_nats"] = None
    assert said_of_losses(report) == []


def test_bounds_of_what_other_measures_read_are_listed_apart():
    declared = list_measures()["querykey"]
    view = {"bounds": [vars(one) for one in declared.bound], "limits": declared.limits}
    assert group_columns(declared.columns, view) == [
        ("Readings", ["norm", "smallest", "condition", "abs_norm", "attained"]),
        ("Bounds", ["rope_bound", "score_bound", "prenorm_bound", "prenorm_printed"]),
    ]


@pytest.mark.full
def test_a_line_that_is_drawn_beside_is_called_by_its_name():
    report = sample(["a"], layers=2)
    (spectrum,) = (one for one in report["measures"] if one["name"] == "spectrum")
    spectrum["bounds"] = [{"column": "norm", "limit": "upper", "side": "beside", "source": "Own"}]
    page = render(report)
    section = page[page.index('id="spectrum"') : page.index('id="docs-spectrum"')]
    assert 'data-control="bounds"> upper</label>' in section
    assert "> bounds</label>" in page and "> bounds</label>" not in section
    definition = page[page.index('id="docs-spectrum"') :].partition("</summary>")[0]
    assert definition.endswith("columns, source")

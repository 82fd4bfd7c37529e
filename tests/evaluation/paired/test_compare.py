"""Verdicts on models that answered the same questions: their scale, their family, their pages."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from statsmodels.stats.multitest import multipletests

import layerlab
from layerlab.evaluation.results.question_remarks import describe_sentences
from layerlab.records.parse import read_json
from layerlab.report.i18n.language import language
from tests.evaluation.paired.written_samples import (
    DATE,
    judged_sample,
    sample,
    write,
    write_both,
    write_scores,
)
from tests.support.mounted import room
from tests.support.refused import refuses

# What stands in a sentence and is no English: names, and options to type.
NAMES = {*("base", "tuned", "other", "law", "length", "passages", "passage"), "cluster", "none"} | {
    *("olm", "ar", "emar")
}


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """A baseline, a better model and one that is alike, on two tasks of right and wrong."""
    rng = np.random.default_rng(0)
    for task, n in (("law", 120), ("trade", 80)):
        base = rng.integers(0, 2, n)
        better = np.where(rng.random(n) < 0.3, 1, base)
        like = np.where(rng.random(n) < 0.1, 1 - base, base)
        for name, scores in (("base", base), ("better", better), ("like", like)):
            write_scores(tmp_path / name, scores.tolist(), task)
    return [tmp_path / name for name in ("base", "better", "like")]


def rows_of(found: Any, arm: str) -> dict[str, Any]:
    return {row["task"]: row for row in found.rows if row["arm"] == arm}


def test_all_tests_are_one_family(three):
    found = layerlab.judge(three)
    assert found.content["tests"] == len(found.rows) == 8
    raw = [row["p"] for row in found.rows]
    expected = multipletests(raw, method="holm")[1]
    assert [row["holm"] for row in found.rows] == pytest.approx(expected)
    assert found.content["baseline"] == "base"


def test_a_suite_has_two_scales_and_says_which(three):
    rows = rows_of(layerlab.judge(three), "better")
    whole, tasks = rows["all questions"], rows["mean of tasks"]
    parts = [rows["law"], rows["trade"]]
    assert whole["gained"] == sum(row["gained"] for row in parts) and whole["n"] == 200
    expected = stats.binomtest(whole["gained"], whole["gained"] + whole["lost"]).pvalue
    assert whole["p"] == pytest.approx(expected)
    assert whole["verdict"] == "better"
    assert whole["said"].endswith("; unit of replication: a question, of which there are 200.")
    assert tasks["difference"] == pytest.approx(np.mean([row["difference"] for row in parts]))
    assert (
        tasks["units"] == 2 and "a task, of which there are 2 with 200 questions" in tasks["said"]
    )


def test_the_baseline_is_the_first_or_as_named(three):
    assert {row["against"] for row in layerlab.judge(three, baseline="like").rows} == {"like"}
    given = layerlab.judge(three, baseline=str(three[1]))
    (row,) = (one for one in given.rows if one["task"] == "law" and one["arm"] == "base")
    assert row["verdict"] == "worse" and "base is worse than better by" in row["said"]


def test_every_question_that_flipped_is_kept(three):
    found = layerlab.judge(three[:2])
    rows = rows_of(found, "better")
    for task in ("law", "trade"):
        own = [one for one in found.content["flipped"] if one["task"] == task]
        assert sum(one["right_now"] for one in own) == rows[task]["gained"]
        assert sum(not one["right_now"] for one in own) == rows[task]["lost"]
    first = found.content["flipped"][0]
    assert first["text"] == f"Question {first['question']}. Answer:" and first["right"] == "yes"
    assert (first["said"], first["against_said"]) == ("yes", "no")
    assert len(found.frame("flipped")) == len(found.content["flipped"])
    refuses("paired evaluations have no part 'curves'; expected one", found.frame, "curves")  # type: ignore[arg-type]


def shared(tmp_path: Path, field: str = "passage") -> list[Path]:
    """Four passages with five questions each, which a model has all right or all wrong."""
    for name, right in (("base", (1, 0, 0, 0)), ("other", (0, 1, 1, 1))):
        texts = [f"text {at // 5}" + " " * (at % 2) for at in range(20)]
        rows = [sample(at, right[at // 5], doc={field: text}) for at, text in enumerate(texts)]
        write(tmp_path / name, rows)
    return [tmp_path / "base", tmp_path / "other"]


def test_questions_about_one_document_are_one_unit(tmp_path):
    places = shared(tmp_path)
    (row,) = layerlab.judge(places).rows
    assert (row["units"], row["n"], row["documents"]) == (4, 20, ["passage"])
    assert row["p"] == pytest.approx(stats.binomtest(3, 4).pvalue) == 0.625
    assert "the questions of one passage, of which there are 4 with 20 questions" in row["said"]
    (alone,) = layerlab.judge(places, cluster=["none"]).rows
    assert alone["p"] == pytest.approx(stats.binomtest(15, 20).pvalue) and alone["documents"] == []


def test_a_field_that_is_named_makes_clusters(tmp_path):
    places = shared(tmp_path, "chapter")
    assert layerlab.judge(places).rows[0]["units"] == 20
    found = layerlab.judge(places, cluster=["chapter"])
    assert found.rows[0]["units"] == 4
    said = (
        "questions that share their chapter are one cluster (--cluster none takes each by itself)"
    )
    assert any(one.startswith(said) for one in found.content["remarks"])
    (row,) = layerlab.judge(places, cluster=["chapter.none", "question"]).rows
    assert row["units"] == 20


def test_one_document_tells_nothing_of_chance(tmp_path):
    for name, score in (("a", 0), ("b", 1)):
        write(tmp_path / name, [sample(at, score, doc={"book": "one"}) for at in range(9)])
    found = layerlab.judge([tmp_path / "a", tmp_path / "b"], cluster=["book"])
    (row,) = found.rows
    assert row["verdict"] == "no verdict" and row["p"] is None
    assert "one book tells nothing of chance" in row["said"]


def test_models_that_score_alike_are_identical(tmp_path):
    found = layerlab.judge(write_both(tmp_path, [1, 0, 1], [1, 0, 1]))
    (row,) = found.rows
    assert row["verdict"] == "identical"
    assert "b and a have the same score at every question" in row["said"]
    assert len(found.content["remarks"]) == 1  # on seeds; there is nothing else to know


def test_differences_that_cancel_are_not_the_same_scores(tmp_path):
    for name, odd in (("a", 0), ("b", 1)):
        for task in ("one", "two", "three"):
            write_scores(tmp_path / name, [(at + odd) % 2 for at in range(6)], task)
        halves = [[0.25, 0.75], [0.75, 0.25]][odd]
        rows = [sample(at, halves[at % 2], doc={"passage": at // 2}) for at in range(8)]
        write(tmp_path / name, rows, "documents")
    found = rows_of(layerlab.judge([tmp_path / "a", tmp_path / "b"]), "b")
    for name in ("mean of tasks", "documents", "one"):
        assert found[name]["verdict"] == "not distinguishable", found[name]["said"]
        assert found[name]["difference"] == 0 and found[name]["p"] == 1
    near = rows_of(layerlab.judge([tmp_path / "a", tmp_path / "b"], margin=0.01), "b")
    for name in ("mean of tasks", "documents"):
        assert near[name]["within"] is None, "no spread tells how near they surely are"


def test_a_difference_that_is_the_same_everywhere_is_said_as_that(tmp_path):
    (row,) = layerlab.judge(write_both(tmp_path, [0.25] * 7, [0.5] * 7)).rows
    assert row["verdict"] == "no verdict" and row["units"] == 7
    assert row["said"].startswith(
        "no verdict on b against a: the difference is the same at every unit, +25.00 percentage "
        "points, which tells nothing of chance; "
    )


def test_what_can_be_detected_is_at_the_level_of_the_family(three):
    one = rows_of(layerlab.judge(three[::2]), "like")["all questions"]
    two = rows_of(layerlab.judge(three), "like")["all questions"]
    assert max(one["detectable"]) < max(two["detectable"]) < 0.2
    assert "would be found with a probability of 80 %" in two["said"]


def test_the_terminal_shows_counts_and_the_first_flips(three):
    console = Console(width=120, color_system=None)
    with console.capture() as caught:
        console.print(layerlab.judge(three).table(120))
    shown = " ".join(caught.get().split())
    assert re.search(r"\d+ questions flipped; the first 6", shown)
    assert "gained: law, question" in shown and "not about what another training seed" in shown


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_has_every_flip_and_its_numbers_beside(lang, three, tmp_path):
    out = tmp_path / "judged"
    found = layerlab.judge(three, out=out, lang=lang)
    page = (out / "report.html").read_text("utf-8")
    assert page.count("Answer:") == len(found.content["flipped"])
    assert read_json(out / "paired.json") == json.loads(json.dumps(found.content))
    english = "each name is one model: a verdict is about these models"
    assert (english in page) == (lang == "en") and ("每个名称是一个模型" in page) == (lang == "zh")
    assert ("无法区分 like 与 base" in page) == (lang == "zh") and "基座" not in page
    again = found.content["command"].split()
    assert again[:2] == ["layerlab", "judge"] and str(three[0]) in again
    layerlab.judge(three, out=out)  # over its own
    (out / "report.html").write_text("mine")
    refuses("holds something other than paired evaluations: report", layerlab.judge, three, out=out)


def test_numbers_and_page_are_written_both_or_neither(three, tmp_path):
    out = tmp_path / "judged"
    layerlab.judge(three[:2], out=out)
    before = {path: path.read_bytes() for path in out.iterdir()}
    with room(len(before[out / "report.html"]) - 1):
        refuses("report.html: no more could be", layerlab.judge, three[:2], out=out, margin=0.5)
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_no_sentence_of_the_chinese_page_is_left_in_english():
    content = judged_sample()
    known = language("zh")
    told = [*content["remarks"], *(row["said"] for row in content["rows"])]
    assert len(told) > 12
    for one in told:
        words = re.findall(r"[a-z]{2,}", known.translate(one))
        assert set(words) <= NAMES, (one, known.translate(one))


def test_what_answers_hold_is_no_markup(tmp_path):
    bad = "<script>alert(1)</script>\x1b[31m[bold]x"
    for name, score in (("a", 0), ("b", 1)):
        write(tmp_path / name, [sample(at, score, prompt=bad) for at in range(9)])
    found = layerlab.judge([tmp_path / "a", tmp_path / "b"], out=tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    console = Console(width=100, color_system=None)
    with console.capture() as caught:
        console.print(found.table(100))
    assert "\x1b" not in caught.get() and "[bold]x" in caught.get()


def grouped(folder: Path, shift: int = 0) -> Path:
    """A model's answers to four tasks of two groups, which are a group, and one beside them."""
    for at, task in enumerate(("algebra", "anatomy", "history", "law", "beside")):
        scores = [int((n * 7 + at) % 10 > 4 - shift * (at < 2)) for n in range(40)]
        write_scores(folder, scores, task)
    told = {
        "mmlu": ["stem", "other"],
        "stem": ["algebra", "anatomy"],
        "other": ["history", "law"],
        "same": ["stem"],  # another name of the same tasks
        "circle": ["circle", "algebra"],
        "beside": [],
    }
    (folder / f"results_{DATE}.json").write_text(json.dumps({"group_subtasks": told}))
    return folder


def test_groups_of_lm_eval_are_judged_over_all_their_questions(tmp_path):
    found = layerlab.judge([grouped(tmp_path / "a"), grouped(tmp_path / "b", 2)])
    rows = {row["task"]: row for row in found.rows}
    names = {"all questions", "mean of tasks", "mmlu", "stem", "other"}
    assert set(rows) == {*names, "algebra", "anatomy", "history", "law", "beside"}
    tasks = [rows["algebra"], rows["anatomy"]]
    stem = rows["stem"]
    assert (stem["scope"], stem["n"], stem["tasks"]) == ("group", 80, 2)
    assert stem["gained"] == sum(one["gained"] for one in tasks) > 8
    assert stem["difference"] == pytest.approx(np.mean([one["difference"] for one in tasks]))
    exact = stats.binomtest(stem["gained"], stem["gained"] + stem["lost"]).pvalue
    assert stem["p"] == pytest.approx(exact)
    assert stem["verdict"] == "better" and rows["other"]["verdict"] == "identical"
    assert rows["mmlu"]["n"] == 160 and found.content["tests"] == 10
    assert "over all questions of the 2 tasks of stem; " in stem["said"]


@pytest.mark.parametrize(("metric", "word"), [("alone", "better"), ("abstained", "worse")])
def test_what_only_our_benchmarks_measure_has_its_direction(tmp_path, metric, word):
    found = layerlab.judge(write_both(tmp_path, [0] * 12, [1] * 12, metric=metric))
    (row,) = found.rows
    assert (row["metric"], row["verdict"]) == (metric, word)
    assert (describe_sentences("own") in found.content["remarks"]) == (metric == "alone")


def test_the_interval_of_other_scores_reaches_as_far_as_they_differ(tmp_path):
    gaps = [30 * (1 + at % 3) for at in range(9)]
    more = [at + gap for at, gap in enumerate(gaps)]
    (row,) = layerlab.judge(write_both(tmp_path, range(9), more, metric="score")).rows
    expected = stats.ttest_1samp(gaps, 0).confidence_interval()
    assert (row["low"], row["high"]) == pytest.approx((expected.low, expected.high))


def test_the_interval_of_shares_ends_where_they_can_differ_no_more(tmp_path):
    places = write_both(tmp_path, [0] * 4, [1] * 4)
    (up,), (down,) = layerlab.judge(places).rows, layerlab.judge(places[::-1]).rows
    assert up["high"] == 1 and -1 < up["low"] < 0.5
    assert (down["low"], down["high"]) == (-1, -up["low"])
    (less,) = layerlab.judge(places, confidence=0.8).rows
    assert up["low"] < less["low"]


def test_a_margin_tests_whether_two_models_are_alike(tmp_path):
    """Against two one-sided tests at each end, here by scipy on the same scores."""
    draw = np.random.default_rng(1)
    theirs = draw.random(200)
    for name, shift in (("base", 0.0), ("like", 0.001), ("off", 0.2)):
        noise = 0 if name == "base" else draw.normal(shift, 0.02, 200)
        write_scores(tmp_path / name, (theirs + noise).tolist(), metric="score")
    places = [tmp_path / name for name in ("base", "like", "off")]
    found = layerlab.judge(places, margin=0.01, out=tmp_path / "out")
    like, off = found.rows
    assert (like["within"], off["within"]) == ("holds", "fails") and found.content["tests"] == 6
    assert "within 0.01 units of the metric of each other holds (p = " in like["said"]
    lines = next(places[1].glob("*.jsonl")).read_text().splitlines()
    gaps = np.array([json.loads(one)["score"] for one in lines]) - theirs
    ends = [stats.ttest_1samp(gaps, end).pvalue for end in (-0.01, 0.01)]
    assert like["within_p"] >= max(ends) and like["within_p"] <= 6 * max(ends)
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    for word in ("holds", "fails", "is not decided"):
        told = like["said"].replace(" holds ", f" {word} ")
        words = set(re.findall(r"[a-z]{2,}", language("zh").translate(told)))
        assert words <= {*NAMES, "like", "own"}, language("zh").translate(told)
    assert "within margin" in page and "--margin 0.01" in page
    sure = []
    for margin in (0.003, 0.01):
        (row,) = layerlab.judge(places[:2], margin=margin).rows
        p = [stats.ttest_1samp(gaps, end).pvalue for end in (0, -margin, margin)]
        _, *ends = multipletests(p, method="holm")[1]
        sure.append(int(np.sum(np.array(ends) < 0.05)))
        assert abs(gaps.mean()) < margin and row["within_p"] == pytest.approx(max(ends))
        assert row["within"] == ("holds" if sure[-1] == 2 else "not decided")
        assert f"{row['within']} (p = " in row["said"]
    assert sure == [1, 2]
    assert layerlab.judge(places).rows[0]["within"] is None
    for margin, said in ((0, "expected a number above 0"), (float("nan"), "is nan; expected")):
        refuses(said, layerlab.judge, places, margin=margin)


def test_a_margin_that_is_passed_by_chance_is_not_decided(tmp_path):
    places = write_both(tmp_path, [0.5] * 4, [0.6, 0.4, 0.7, 0.5])
    for turned in (places, places[::-1]):
        (row,) = layerlab.judge(turned, margin=0.03).rows
        assert abs(row["difference"]) == pytest.approx(0.05)
        assert (row["within"], row["within_p"]) == ("not decided", 1)


@pytest.mark.full
def test_a_margin_of_shares_is_a_share(tmp_path):
    scores = [int(n % 10 > 4) for n in range(4000)]
    places = write_both(tmp_path, scores, [1, *scores[1:]])
    assert layerlab.judge(places, margin=0.01).rows[0]["within"] == "holds"
    assert layerlab.judge(places, margin=1e-5).rows[0]["within"] == "not decided"
    for margin in (1, 2):
        said = rf"margin is {margin}, and scores .* a percentage point is 0\.01"
        refuses(said, layerlab.judge, places, margin=margin)

"""Results as tables, files and words; a file of something else is refused."""

import json
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from layerlab.console.evaluation import EvaluationBar
from layerlab.console.progress import NullProgress, Progress
from layerlab.evaluation.results.aggregate import benchmark_rows, group_rows, section_rows
from layerlab.evaluation.results.published_comparison import published_rows
from layerlab.evaluation.results.result import RESULTS, EvaluationResult, load_result
from layerlab.records.parse import seal
from tests.evaluation.results.test_aggregate import record
from tests.support.refused import refusal, refuses


@pytest.fixture
def content() -> dict[str, Any]:
    rows = [record("boolq", "all", [1.0, 0.0, 1.0], english="[b]All[/b]\x1b[31m\n", category="x")]
    benchmarks = benchmark_rows(rows)
    arm = {"arm": "a", "parameters": 12345, "context": None, "precision": "", "dtype": "float32"}
    return {
        "arms": [arm],
        "benchmarks": benchmarks,
        "groups": group_rows(benchmarks),
        "sections": section_rows(rows),
        "subjects": rows,
        "left_out": [{"title": "PIQA", "reason": "not here"}],
        "remarks": ["asked differently"],
    }


def test_what_is_shown(content):
    said = EvaluationResult(content).summary(90, subjects=True)
    assert "a: 12,345 parameters, context endless, float32; percent +- standard error" in said
    assert "66.67 +- 33.33" in said and "25.00" in said
    assert "- left out: PIQA: not here" in said and "- asked differently" in said
    assert max(map(len, said.splitlines())) <= 90
    assert EvaluationResult(content).summary(200) == str(EvaluationResult(content).summary(200))


def test_a_model_without_a_finite_logit_has_no_score(content):
    rows = [{**one, "lost": True, "unsound": one["n"]} for one in content["subjects"]]
    benchmarks = benchmark_rows(rows)
    lost = {**content, "subjects": rows, "benchmarks": benchmarks, "groups": group_rows(benchmarks)}
    measured = [{"metric": "acc", "value": 0.0, "low": 0.0, "high": 0.5, "error": 0.0}]
    task = {**rows[0], "task": "own", "measured": measured}
    del task["benchmark"]
    found = EvaluationResult({**lost, "tasks": [task]})
    for name in ("boolq", "own"):
        refuses(f"{name} has no score: all logits of a are NaN or inf", found.score, name)
    for kind in ("benchmarks", "subjects", "groups", "tasks"):
        frame = found.frame(kind)
        for column in {"score", "low", "high", "error", "value"} & set(frame.columns):
            assert frame[column].isna().all(), (kind, column)
    assert EvaluationResult(content).score("boolq") == pytest.approx(2 / 3)


def test_hostile_names_are_text(content):
    said = EvaluationResult(content).summary(120, subjects=True)
    assert "[b]All[/b]" in said and "\x1b" not in said


def test_tables(content):
    found = EvaluationResult(content)
    assert found.frame("subjects").score.tolist() == [pytest.approx(2 / 3)]
    assert "scores" not in found.frame("subjects") and "shots_asked" in found.frame("subjects")
    assert found.frame("compared").empty
    assert refusal(found.frame, "table").startswith(
        "there is no table 'table'; expected benchmarks, subjects,"
    )
    assert refusal(found.score, "mmlu") == "'mmlu' was not asked; asked were boolq"


def test_numbers_survive_the_file(content, tmp_path):
    assert EvaluationResult(content).save(tmp_path / "new").folder == tmp_path / "new"
    assert load_result(tmp_path / "new").content == content


def test_no_table_of_an_earlier_run_is_left(content, tmp_path):
    compared = [{"arm": "a", "against": "b", "title": "BoolQ", "difference": 0.5}]
    EvaluationResult({**content, "compared": compared}).save(tmp_path)
    assert (tmp_path / "tables" / "compared.csv").is_file()
    EvaluationResult(content).save(tmp_path)
    tables = {path.stem for path in (tmp_path / "tables").iterdir()}
    assert tables == {"benchmarks", "groups", "subjects"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, ": No such file or directory; give the results.json of an evaluation"),
        ("{half", " is not whole JSON: "),
        ("[1]", " holds no scores of layerlab evaluate; give the results.json of an evaluation"),
        (json.dumps({"runs": []}), " holds no scores of layerlab evaluate; give"),
    ],
)
def test_a_file_of_something_else(tmp_path, text, said):
    path = tmp_path / "results.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    caught = refusal(load_result, path)
    assert said in caught and str(path) in caught


def test_a_bar_counts_questions():
    drawn = StringIO()
    with EvaluationBar(10, Console(file=drawn, force_terminal=True, width=120)) as bar:
        bar.begin("a", 4)
        bar.step(steps=16)
        assert bar.progress.tasks[0].completed == 4
        bar.end("a")
        bar.begin("[b]x", 6)
        bar.step(steps=2)
        assert bar.progress.tasks[0].completed == 6
        bar.end("[b]x")
    assert bar.progress.tasks[0].completed == 10
    assert isinstance(bar, Progress) and isinstance(NullProgress(), Progress)
    assert "[b]x" in drawn.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_published_tables_keep_their_columns(content, width):
    rows = [record("financeiq", "CPA", [1.0, 0.0])]
    beside = published_rows(["a" * 40], [{**rows[0], "arm": "a" * 40}], [], [])
    lines = EvaluationResult({**content, "published": beside}).summary(width).splitlines()
    start = next(place for place, one in enumerate(lines) if one.startswith("Table 8 of pangu23"))
    heads = [one.split() for one in lines[start:] if one.startswith("model")]
    assert [name for head in heads for name in head[2:]] == list(beside[0]["cells"])
    assert (len(heads) == 1) == (width == 200)
    for part in range(len(heads)):
        known = [one for one in lines[start:] if one.startswith("YunShan ")]
        assert len(known) == len(heads) and known[part].split()[1] == "published"
    assert max(map(len, lines[start:])) <= width


def test_a_forged_result_is_refused(content, tmp_path):
    EvaluationResult(content).save(tmp_path)
    file = tmp_path / RESULTS
    whole = json.loads(file.read_text("utf-8"))
    assert load_result(tmp_path).content == json.loads(json.dumps(content))
    whole["benchmarks"][0]["score"] = 1.0
    file.write_text(json.dumps(whole), "utf-8")
    caught = refusal(load_result, tmp_path)
    said = "it is not what was written, or is of an earlier version; evaluate again"
    assert caught == f"cannot read {file}: {said}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arms": []}, "its arms is []"),
        ({"arms": [3]}, "its arms.0 is 3"),
        ({"benchmarks": [{}]}, "it has no benchmarks.0.arm"),
        ({"benchmarks": [{"arm": "a", "benchmark": "b", "score": "1"}]}, "score is '1'"),
        ({"benchmarks": [{"arm": "a", "benchmark": "b", "score": 1e99}]}, "score is 1e+99"),
        ({"benchmarks": [{"arm": "a", "benchmark": "b", "score": float("nan")}]}, "score is nan"),
    ],
)
def test_a_result_is_read_by_what_it_holds(change, said, content, tmp_path):
    file = tmp_path / RESULTS
    file.write_text(json.dumps(seal(content)), "utf-8")
    assert load_result(file).score("boolq", "a") == pytest.approx(2 / 3)
    file.write_text(json.dumps(content), "utf-8")
    refuses("it is not what was written, or is of an earlier version", load_result, file)
    file.write_text(json.dumps(seal({**content, **change})), "utf-8")
    caught = refusal(load_result, file)
    assert caught.startswith(f"cannot read {file}: ") and said in caught

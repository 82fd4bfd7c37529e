"""What is no share is told in its own unit: differences, and the means of groups."""

import json
import math
from statistics import fmean

import pytest
import torch

import layerlab
from tests.evaluation.candidate import candidate, tokenizer

pytest.importorskip("lm_eval")

from layerlab.evaluation.results.result import load_result
from layerlab.records.index.search import find_entries
from layerlab.report.pages.evaluation import render
from tests.evaluation.lm_eval_tasks.own_tasks import LAST, folder, run, write

__all__ = ["folder"]
# The mean log-likelihood of an answer, in nats.
NATS = LAST[: LAST.index("  - {")] + (
    "  - {metric: perplexity, aggregation: mean, higher_is_better: true}\n"
)
# The same, summed up in one perplexity of all answers.
WHOLE = NATS.replace("mean, higher_is_better: true", "perplexity, higher_is_better: false")
GROUP = """
group: own_nats
task: [own_one, own_other]
aggregate_metric_list: [{metric: perplexity, weight_by_size: true}]
"""


@pytest.mark.full
def test_a_difference_in_nats_is_no_percentage(folder):
    task = write(folder, "own_one", NATS)
    there = run(task, model=candidate(512, initializer_range=0.5).model)
    found = run(task, against=there)
    gap = found.score("own_one") - there.score("own_one")
    assert abs(gap) > 0.5
    (row,) = found.content["compared"]
    assert row["difference"] == pytest.approx(gap) and row["share"] is False
    said = next(line for line in found.summary(160).splitlines() if "of each question" in line)
    assert f"{gap:+.4g} +- " in said and "own_one (log-likelihood of each question)" in said
    page = render(found.content)
    assert f"{gap:+.4g}" in page and "in its own unit" in page


@pytest.mark.full
def test_a_perplexity_is_not_the_mean_of_its_questions(folder):
    task = write(folder, "own_one", WHOLE)
    there = run(task, model=candidate(512, initializer_range=0.5).model)
    found = run(task, against=there)
    for one in (found, there):
        (row,) = one.content["tasks"][0]["measured"]
        nats = one.content["tasks"][0]["scores"].values()
        assert one.score("own_one") == row["value"] == pytest.approx(math.exp(-fmean(nats)))
    assert found.score("own_one") < there.score("own_one")
    (row,) = found.content["compared"]  # likelier, and so the lesser perplexity
    assert row["difference"] > 0 and row["title"] == "own_one (log-likelihood of each question)"


@pytest.mark.full
def test_a_question_that_was_not_asked_has_no_likelihood(folder, tmp_path):
    """It was minus infinity, which no results.json may hold."""
    task, out = write(folder, "own_one", WHOLE, 3), tmp_path / "out"
    long = {"number": " one" * 600, "options": [], "right": 0}
    with (folder / "own_one.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(long) + "\n")
    first, kept = (run(task, out=out).content["tasks"][0] for _ in range(2))
    assert first["shots"]["unfit"] == 1 and len(first["scores"]) == 3 and first["score"] is None
    assert kept["scores"] == first["scores"]
    found = run(task, against=load_result(out)).content["compared"]
    assert found[0]["n"] == 3 and found[0]["difference"] == 0
    other = tmp_path / "other"
    run(task, out=other, model=candidate(512, initializer_range=0.5).model)
    (row, *_) = layerlab.judge([out, other]).content["rows"]
    assert row["n"] == 3


@pytest.mark.full
@pytest.mark.parametrize("start", ["", "<|endoftext|>"])
def test_a_text_with_nothing_before_it_is_read_in_any_batch(folder, start):
    body = WHOLE.replace("Which number comes after {{number}}? Answer:", "")
    task = write(folder, "own_one", body.replace('" A"', f'"{start}{{{{number}}}} comes"'))
    one, several = (run(task, batch_size=size).score("own_one") for size in (1, 8))
    assert one == pytest.approx(several) and one > 1


def test_few_nats_are_no_percentage_either(folder, tmp_path):
    """A mean near 0 has the interval that one of shares could have."""
    model = candidate(512).model
    head = torch.nn.Linear(model.config.hidden_size, model.config.vocab_size)
    with torch.no_grad():  # every next token is the A of the answer, nearly
        head.weight.copy_(0.1 * model.lm_head.weight)
        head.bias.zero_()
        head.bias[tokenizer()(" A", add_special_tokens=False)["input_ids"]] = 7.0
    model.set_output_embeddings(head)
    found = run(write(folder, "own_one", NATS), model=model, out=tmp_path / "out")
    (row,) = found.content["tasks"][0]["measured"]
    assert -1 < row["low"] and row["high"] <= 0 and row["share"] is False
    assert f" {row['value']:.4g} " in found.summary(160)
    ((entry,), _) = find_entries(tmp_path / "out")
    assert entry.headline == f"own_one: perplexity {row['value']:.4g}"


@pytest.mark.full
def test_a_difference_of_shares_is_in_percentage_points(folder):
    task = folder / "own_choice.yaml"
    there = run(task)
    there.content["tasks"][0]["scores"] |= {
        key: 1 - score for key, score in list(there.content["tasks"][0]["scores"].items())[:3]
    }
    found = run(task, against=there)
    (row,) = found.content["compared"]
    assert row["share"] and row["title"] == "own_choice" and row["difference"]
    assert f"{100 * row['difference']:+.2f} +- " in found.summary(160)
    assert "in its own unit" not in render(found.content)


@pytest.mark.full
def test_the_mean_of_a_group_has_the_unit_of_its_tasks(folder, tmp_path):
    write(folder, "own_one", NATS)
    write(folder, "own_other", NATS, 5)
    (folder / "own_nats.yaml").write_text(GROUP, encoding="utf-8")
    found = run(folder / "own_nats.yaml", out=tmp_path / "out")
    (row,) = found.content["task_groups"]
    said = f"{row['score']:.4g}"
    (line,) = (one for one in found.summary(160).splitlines() if "own_nats" in one)
    assert f" {said} +- " in line and "[" not in line
    page = render(found.content)
    assert said in page and f"{100 * row['score']:.2f}" not in page
    ((entry,), _) = find_entries(tmp_path / "out")
    assert f"own_nats: perplexity {said}" in entry.headline


@pytest.mark.full
def test_a_task_that_scores_no_question_has_nothing_to_pair(folder):
    path = folder / "own_read.yaml"
    found = run(path, format="bf16", limit=4)
    rows = found.content["precision"]
    assert [set(row) >= {"arm", "perplexity"} for row in rows] == [True, True]
    assert {row["arm"] for row in found.content["tasks"]} == {row["arm"] for row in rows}
    again = run(path, limit=4, against=run(path, limit=4))
    assert again.content["compared"] == []
    assert "own_read: no question has a score of its own to compare" in again.content["remarks"]
    assert not [one for one in again.content["remarks"] if "asked differently" in one]
    both = run([path, folder / "own_choice.yaml"], format="bf16", limit=4).content["precision"]
    assert [row.get("title") for row in both] == [None, None, "own_choice"]

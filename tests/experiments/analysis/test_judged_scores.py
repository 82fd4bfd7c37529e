"""Verdicts on scores of finished models: which way is better, over seeds and over questions."""

import io
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.analysis.comparison import Comparison
from layerlab.recipes.comparison_sections import Command
from layerlab.recipes.training import TrainingRecipe
from layerlab.records.run import RunRecord
from layerlab.records.scores import ModelScore, TaskPart
from layerlab.report.i18n.language import language
from layerlab.report.pages.comparison import render, save_comparison
from tests.training.support.drawn import recipe, record, runs

SUITE, OWN = "suite:own", "command:own"
COMMANDS = {"own": {"run": ["python", "score.py", "{model}"], "better": "lower"}}
ASKED = Command(run=("python", "score.py", "{model}")).digest
SEEDS = [1, 2, 3, 4]
NATS = dict(zip(SEEDS, (3.0, 3.3, 3.1, 3.2), strict=True))
Worth = Callable[[str, int], np.ndarray]


def score(*parts: tuple[float, np.ndarray], asked: str = ASKED, **given: Any) -> ModelScore:
    """A score of tasks with these weights and questions."""
    made = [
        TaskPart(
            task=f"task {number}",
            weight=weight,
            score=float(worth.mean()),
            questions={str(place): float(one) for place, one in enumerate(worth)},
            **given,
        )
        for number, (weight, worth) in enumerate(parts)
    ]
    whole = math.fsum(one.weight * one.score for one in made)
    return ModelScore(score=whole, asked=asked, seconds=1.0, parts=made)


def made(given: TrainingRecipe, worth: Worth, measure: str = SUITE) -> list[RunRecord]:
    """All runs of a recipe, with the scores of one task."""
    return [
        replace(
            record(run, NATS.get(run.seed, 3.0)),
            scores={measure: score((1.0, worth(run.arm, run.seed)))},
        )
        for run in runs(given)
    ]


def printed(found: Comparison) -> str:
    stream = io.StringIO()
    Console(file=stream, width=100, force_terminal=False).print(found.table(100))
    return stream.getvalue()


def judged(given: TrainingRecipe, found: list[RunRecord]) -> Mapping[str, Any]:
    (row,) = compare_runs(given, found).content["measures"]
    return dict(row)


def questions(gain: float, seed: int = 0, count: int = 300) -> Worth:
    """Right answers by chance, each question as hard for all; gpt2 gains so much."""
    hard = np.random.default_rng(seed).uniform(0.2, 0.8, count)

    def worth(arm: str, number: int) -> np.ndarray:
        rng = np.random.default_rng([seed, number, arm == "gpt2"])
        return (rng.uniform(size=count) < hard + gain * (arm == "gpt2")).astype(float)

    return worth


@pytest.mark.full
def test_more_is_better_and_the_sentence_names_questions():
    given = recipe(seeds=SEEDS, measures=[SUITE])
    found = compare_runs(given, made(given, questions(0.2)))
    (row,) = found.content["measures"]
    assert row["verdict"] == "better" and 0.1 < row["difference"] < 0.3
    assert row["low"] > 0 and row["mean"] - row["against_mean"] == pytest.approx(row["difference"])
    assert row["said"].startswith("suite:own of gpt2 is better than that of llama by 0.")
    assert " by seeds and 0." in row["said"] and " by questions, p = " in row["said"]
    assert found.content["tests"] == 2, "one family with the loss"
    assert "suite:own of gpt2 is better" in render(found.content)
    chinese = language("zh").translate(row["said"])
    assert (
        chinese.startswith("gpt2 的 suite:own 比 llama 的更好 0.") and " 分（95 % 区间 +" in chinese
    )
    assert "题目占 0." in chinese and not re.search(r"\b(by|in|score|questions)\b", chinese)
    scores = [one[SUITE] for one in found.content["runs"] if one["arm"] == "gpt2"]
    assert row["mean"] == pytest.approx(np.mean(scores))
    worse = judged(given, made(given, questions(-0.2)))
    assert worse["verdict"] == "worse" and worse["high"] < 0


@pytest.mark.full
def test_scores_stand_by_arm_and_seed_with_their_paired_differences(tmp_path):
    given = recipe(seeds=SEEDS, measures=[SUITE])
    found = made(given, questions(0.2))
    comparison = compare_runs(given, found)
    content = comparison.content
    (row,) = content["measures"]
    own = {(one.arm, one.seed): one.scores[SUITE].score for one in found}
    assert row["seeds"] == [
        {
            "seed": seed,
            "value": pytest.approx(own["gpt2", seed]),
            "baseline": pytest.approx(own["llama", seed]),
            "difference": pytest.approx(own["gpt2", seed] - own["llama", seed]),
        }
        for seed in SEEDS
    ]
    assert np.mean([one["difference"] for one in row["seeds"]]) == pytest.approx(row["difference"])
    lines = [line.split() for line in printed(comparison).splitlines()]
    assert ["suite:own", "by", "seed"] in lines
    numbers = [*(one["difference"] for one in row["seeds"]), row["difference"]]
    shown = [f"{one:+.4f}" for one in numbers]
    assert ["llama", *(f"{own['llama', seed]:.4f}" for seed in SEEDS)] in [one[:5] for one in lines]
    assert any(line[-5:] == shown for line in lines)
    page = save_comparison(content, tmp_path, "zh").read_text("utf-8")
    for sentence in ("gpt2 减 llama", "除损失之外，逐个种子", "种子 4"):
        assert sentence in page
    table = pd.read_csv(tmp_path / "tables" / "measures.csv")
    assert list(table.columns) == [
        *("measure", "arm", "against", "seed", "value", "baseline", "difference")
    ]
    assert table["difference"].tolist() == pytest.approx(numbers[:-1])


def test_a_run_without_a_score_is_a_dash_at_its_seed():
    given = recipe(seeds=SEEDS, measures=[SUITE])
    found = [
        replace(one, scores={}) if (one.arm, one.seed) == ("gpt2", 2) else one
        for one in made(given, questions(0.2))
    ]
    comparison = compare_runs(given, found)
    (row,) = comparison.content["measures"]
    lacks = [one["seed"] for one in row["seeds"] if one["difference"] is None]
    assert lacks == [2] and row["seeds"][1]["value"] is None
    assert row["seeds"][1]["baseline"] is not None
    assert any(
        line.split()[:1] == ["gpt2"] and line.split()[2:3] == ["-"]
        for line in printed(comparison).splitlines()
    )


@pytest.mark.parametrize(
    "seeds", [None, "all", [1, 2], [{}], [{"seed": {}, "value": "<i>hostile"}]]
)
def test_what_is_no_list_of_seeds_leaves_a_page(seeds):
    given = recipe(measures=[SUITE])
    content = dict(compare_runs(given, made(given, questions(0.1))).content)
    content["measures"] = [{**content["measures"][0], "seeds": seeds, "against": None}, {}]
    page = render(content)
    assert ('id="measures"' in page) == bool(seeds and isinstance(seeds, list) and seeds[0] != 1)
    assert "hostile" not in page or "&lt;i&gt;hostile" in page


def test_of_a_command_less_may_be_better():
    given = recipe(seeds=SEEDS, measures=[OWN], commands=COMMANDS)
    assert judged(given, made(given, questions(0.2), OWN))["verdict"] == "worse"
    assert judged(given, made(given, questions(-0.2), OWN))["verdict"] == "better"


def test_both_sources_of_chance_are_in_the_interval():
    given = recipe(seeds=SEEDS, measures=[SUITE])
    easy = np.linspace(-0.5, 0.5, 40)

    def worth(arm: str, seed: int) -> np.ndarray:
        return easy * (arm == "gpt2") + seed * (0.01 if arm == "gpt2" else 0.02)

    row = judged(given, made(given, worth))
    # Seeds differ by 0.01 each, and questions by what the arm makes of them.
    assert row["seeds_error"] == pytest.approx(np.std([0.01, 0.02, 0.03, 0.04], ddof=1) / 2)
    assert row["text_error"] == pytest.approx(easy.std(ddof=1) / math.sqrt(40))
    assert row["verdict"] == "not distinguishable"


def test_tasks_weigh_as_the_score_has_them():
    given = recipe(seeds=SEEDS, measures=[SUITE])
    rng = np.random.default_rng(3)
    parts = {
        (arm, seed): [(0.75, rng.standard_normal(30)), (0.25, rng.standard_normal(5))]
        for arm in ("llama", "gpt2")
        for seed in SEEDS
    }
    found = [
        replace(record(run, 3.0), scores={SUITE: score(*parts[run.arm, run.seed])})
        for run in runs(given)
    ]
    gaps = [
        sum(
            weight * (mine.mean() - other.mean())
            for (weight, mine), (_, other) in zip(
                parts["gpt2", seed], parts["llama", seed], strict=True
            )
        )
        for seed in SEEDS
    ]
    assert judged(given, found)["difference"] == pytest.approx(np.mean(gaps))


def test_a_score_that_is_no_mean_of_questions_is_judged_over_seeds_alone():
    given = recipe(seeds=SEEDS, measures=[OWN], commands=COMMANDS)
    found = []
    for run in runs(given):
        worth = run.seed + (5.0 + 0.1 * run.seed if run.arm == "gpt2" else 0.0)
        part = TaskPart(task="own", weight=1.0, score=worth)
        kept = ModelScore(score=worth, asked=ASKED, seconds=1.0, parts=[part])
        found.append(replace(record(run, 3.0), scores={OWN: kept}))
    row = judged(given, found)
    assert row["text_error"] is None and row["verdict"] == "worse"
    assert "by questions" not in row["said"]


def test_an_arm_that_diverges_more_often_is_not_better_by_its_scores():
    many = list(range(1, 9))
    for measure, commands in ((SUITE, {}), (OWN, COMMANDS)):
        given = recipe(seeds=many, measures=[measure], commands=commands)
        found = [
            record(run, math.nan)
            if run.arm == "gpt2" and run.seed > 1
            else replace(record(run, 3.0), scores={measure: score((1.0, np.arange(4.0)))})
            for run in runs(given)
        ]
        row = judged(given, found)
        assert row["verdict"] == "worse" and row["lost"] == many[1:]


def test_a_claim_on_a_score_holds_where_more_is_better():
    claims = [
        {"source": "Own", "statement": "a", "relation": relation, "arm": "gpt2", "measure": SUITE}
        for relation in ("better", "worse", "no better")
    ]
    given = recipe(seeds=SEEDS, claims=claims)
    found = compare_runs(given, made(given, questions(0.2))).content["claims"]
    assert [one["verdict"] for one in found] == ["holds", "fails", "fails"]
    assert "by questions" in found[0]["said"]
    found = compare_runs(given, made(given, questions(-0.2))).content["claims"]
    assert [one["verdict"] for one in found] == ["fails", "holds", "holds"]


def test_scores_of_other_questions_do_not_count_and_those_that_lack_are_named():
    given = recipe(seeds=SEEDS, measures=[SUITE])
    found = made(given, questions(0.2))
    other = replace(found[0], scores={SUITE: score((1.0, np.ones(9)), asked="other")})
    told = compare_runs(given, [other, *found[1:-1], replace(found[-1], scores={})]).content
    (row,) = told["measures"]
    assert row["n"] == 2
    (unlike,) = [one for one in told["remarks"] if "left out, because other questions" in one]
    assert other.name in unlike and "type layerlab compare without --judge" in unlike
    (lacking,) = [one for one in told["remarks"] if "suite:own: no score of" in one]
    assert found[-1].name in lacking and other.name not in lacking


def test_scores_of_more_or_fewer_questions_do_not_count():
    given = recipe(seeds=SEEDS, measures=[OWN], commands=COMMANDS)
    found = made(given, questions(0.2), OWN)
    fewer = replace(found[0], scores={OWN: score((1.0, np.ones(9)))})
    told = compare_runs(given, [fewer, *found[1:]]).content
    assert told["measures"][0]["n"] == 3 and told["measures"][0]["text_error"] is not None
    (unlike,) = [one for one in told["remarks"] if "left out, because other questions" in one]
    assert fewer.name in unlike and "the same questions of every model" in unlike


def test_scores_of_another_command_do_not_count():
    """Judged as they are told today, what an earlier command printed may be better for worse."""
    given = recipe(seeds=SEEDS, measures=[OWN], commands=COMMANDS)
    found = made(given, questions(0.2), OWN)
    other = {"own": {"run": ["python", "loss.py", "{model}"]}}
    told = compare_runs(recipe(seeds=SEEDS, measures=[OWN], commands=other), found).content
    assert (
        told["measures"][0]["n"] == 0 and "no seed has it for both" in told["measures"][0]["said"]
    )
    (unlike,) = [one for one in told["remarks"] if "left out, because other questions" in one]
    assert all(one.name in unlike for one in found)
    moved = {"own": {**COMMANDS["own"], "run": ["python", "there/score.py", "{model}"]}}
    told = compare_runs(recipe(seeds=SEEDS, measures=[OWN], commands=moved), found).content
    assert told["measures"][0]["verdict"] == "worse"


def test_a_verdict_on_a_part_of_the_scores_is_not_final():
    claim = {"source": "Own", "statement": "a", "relation": "better", "arm": "gpt2"}
    given = recipe(seeds=SEEDS, measures=[SUITE], claims=[{**claim, "measure": SUITE}])
    found = made(given, questions(0.2))
    content = compare_runs(given, [*found[:-1], replace(found[-1], scores={})]).content
    (row,), (judged_claim,) = content["measures"], content["claims"]
    assert row["n"] == 3 and row["missing"] == [found[-1].seed]
    assert "3 of 4 planned seeds: this verdict is not final" in row["said"]
    assert "planned seeds are missing: this verdict is not final" in judged_claim["said"]
    assert "not final" not in content["rows"][1]["said"], "the losses are all there"


def test_questions_without_an_answer_are_told():
    given = recipe(seeds=SEEDS, measures=[SUITE])
    found = [
        replace(record(run, 3.0), scores={SUITE: score((1.0, np.arange(4.0)), abstained=0.25)})
        for run in runs(given)
    ]
    told = compare_runs(given, found).content["remarks"]
    assert any("suite:own: up to 25 % of the questions have no answer in" in one for one in told)


@pytest.mark.parametrize(("seeds", "why"), [([1], "one seed"), ([1, 2, 3], "every seed shows")])
def test_as_many_right_answers_to_other_questions_tell_nothing_of_chance(seeds, why):
    claim = {"source": "Own", "statement": "a", "relation": "alike", "arm": "gpt2", "margin": 0.02}
    given = recipe(seeds=seeds, measures=[SUITE], claims=[{**claim, "measure": SUITE}])

    def worth(arm: str, seed: int) -> np.ndarray:
        return np.roll(np.repeat([1.0, 0.0], 10), seed + 5 * (arm == "gpt2"))

    found = compare_runs(given, made(given, worth)).content
    (row,), (held,) = found["measures"], found["claims"]
    assert row["verdict"] in ("too few seeds", "no verdict") and row["text_error"] > 0
    assert held["verdict"] == "not decided" and held["holm"] == 1
    assert why in row["said"] and why in held["said"] and "chance" in held["said"]


def test_models_that_answer_every_question_alike_are_identical_and_prove_no_margin():
    claim = {"source": "Own", "statement": "a", "relation": "alike", "arm": "gpt2", "margin": 0.02}
    given = recipe(seeds=SEEDS, measures=[SUITE], claims=[{**claim, "measure": SUITE}])
    same = made(given, lambda arm, seed: np.roll(np.repeat([1.0, 0.0], 10), seed))
    found = compare_runs(given, same).content
    assert found["measures"][0]["verdict"] == "identical"
    assert found["claims"][0]["verdict"] == "not decided"


@pytest.mark.full
def test_arms_that_are_alike_are_called_so():
    given = recipe(seeds=[1, 2, 3], measures=[SUITE])
    draws = 400
    wrong = sum(
        judged(given, made(given, questions(0.0, seed=seed, count=60)))["verdict"]
        in ("better", "worse")
        for seed in range(draws)
    )
    # 5 %, and three standard errors of so many draws.
    assert wrong <= draws * 0.05 + 3 * math.sqrt(draws * 0.05 * 0.95)
